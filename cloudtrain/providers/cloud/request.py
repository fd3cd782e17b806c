"""What requests to all clouds have in common: our tags, what lies where, and what a rehearsal cannot be. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from cloudtrain import __version__
from cloudtrain.providers.cloud.config import CloudConfig

if TYPE_CHECKING:  # looking after a run needs no pydantic
    from cloudtrain.images.selection import PlannedImage
    from cloudtrain.planning.plan import Plan
    from cloudtrain.spec.fields import Input

PREFIX = "cloudtrain"
"""All that is ours is below this folder of the user's storage."""

OURS = "cloudtrain-"
"""What our tags begin with, and other names that we give beside the user's."""

ARCHIVE = "source.tar.gz"


def tags(plan: Plan, image: str) -> dict[str, str]:
    """Ours, by which a job is found again from any machine, then the user's. `image`: the address in the request."""
    context = plan.context
    digest = re.search(r"@(sha256:[0-9a-f]{64})$", image)
    git = {"git-commit": context.git_commit} if context.git_commit else {}
    if context.git_commit and context.git_dirty is not None:
        git["git-dirty"] = str(context.git_dirty).lower()
    mine = {
        "run": plan.run_id,
        "name": plan.spec.name,
        "spec": plan.spec_digest,
        "source": context.source.digest,
        "processes": str(plan.processes),
        "planned": f"{context.time:.3f}",
        **({"owner": context.owner} if context.owner else {}),
        **git,
        **({"image-digest": digest[1]} if digest else {}),
        "version": __version__,
    }
    return {**{f"{OURS}{key}": value for key, value in mine.items()}, **plan.spec.tags}


def ours(all_tags: Mapping[str, Any]) -> dict[str, str]:
    """Our tags out of a job's, without their prefix."""
    return {key.removeprefix(OURS): str(value) for key, value in all_tags.items() if key.startswith(OURS)}


def same_submission(mine: Mapping[str, str], theirs: Mapping[str, str]) -> bool:
    """Whether two sets of our tags are of one and the same submission, and not only of one name."""
    return all(mine.get(key) == theirs.get(key) for key in ("run", "planned", "spec"))


def file_name(place: str) -> str:
    """The name of the one file that an address means; empty for a folder. A suffix tells: `t.csv`, not `v1.0`."""
    name = place.rpartition("/")[2]
    return name if re.search(r"[^.]\.[A-Za-z]\w*$", name) else ""


def input_file(item: Input, place: str) -> str:
    """The name of the one file that an input is; empty for a folder. Its type says it, or else the suffix."""
    if item.type is None:
        return file_name(place)
    return place.rpartition("/")[2] if item.type == "file" else ""


def as_folder(uri: str) -> str:
    """With one slash at the end, or it would match its neighbours' names too."""
    return uri.rstrip("/") + "/"


def idle_note(plan: Plan) -> list[str]:
    """GPUs that are paid for and that no process is started for."""
    idle = plan.gpus - plan.processes
    per_node = f"{idle} of {plan.gpus} GPUs per node"
    return [f"{per_node} stay idle unless a process drives several"] if idle > 0 else []


def rehearsal_notes(plan: Plan) -> list[str]:
    """Where a rehearsal is not the real thing, or what would be refused in earnest."""
    if not plan.is_rehearsal:
        return []
    config, spec, name = plan.target.config_as(CloudConfig), plan.spec, plan.target.provider
    stand_in = plan.host.image_address
    same = stand_in == plan.target.image_address or _built_alike(plan.host.image, plan.target.image)
    notes = [] if same else [f"rehearsed {_with(stand_in)}, not in the image"]
    if config.placeholders:
        missing = ", ".join(config.placeholders)
        notes.append(f"{missing} not set: rehearsed with a placeholder; {name} will ask for it")
    notes += [f"{name} will refuse it: {message}" for message in config.unpaid]
    mine = {plan.host.provider, *plan.host.declaration.fallback_providers}
    local = [item for item, places in spec.inputs.items() if mine & set(places.uri)]
    if local:
        how = "mounted read-only" if stand_in else "what the job writes there stays"
        notes.append(f"inputs {', '.join(local)} are the local folders themselves: {how}")
    if spec.checkpoints.uri:
        notes.append(f"checkpoints stay here: {spec.checkpoints.uri} is neither read nor written")
    return notes


def _built_alike(mine: PlannedImage | None, theirs: PlannedImage | None) -> bool:
    """Whether two images come from the same files and arguments, for whatever processor."""
    recipes = [image.recipe for image in (mine, theirs) if image and image.recipe]
    return len(recipes) == 2 and len({(each.dockerfile, each.kind, each.args) for each in recipes}) == 1


def _with(stand_in: str) -> str:
    return f"in {stand_in}" if stand_in else "with this machine's Python and torch"
