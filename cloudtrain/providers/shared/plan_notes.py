"""Notes of a plan on a cloud: its image, idle machines, limits of a rehearsal."""

from __future__ import annotations

import re
from collections.abc import Iterable

from cloudtrain.catalog.machines import find_instance
from cloudtrain.errors import Issue, warning
from cloudtrain.planning.plan import Plan
from cloudtrain.planning.selection import PlannedImage
from cloudtrain.planning.target import CloudConfig
from cloudtrain.settings import variable_of

_BEFORE_TURING = ("V100", "P100", "P40", "P4", "K80", "M60")
"""GPUs below compute capability 7.5, which CUDA 13 does not support.

Source: NVIDIA, CUDA 13.0 release notes.
"""


def cloud_warnings(plan: Plan, notes: Iterable[str]) -> list[Issue]:
    """Return the warnings that both clouds share, with the cloud's own `notes`."""
    issues = []
    if match := re.search(r"-py3([6-9])(?!\d)", plan.target.image_address):
        message = f"has Python 3.{match[1]}, by its name; the launcher needs 3.10 or newer"
        issues = [plan.located(warning(message, "name a newer image", path=("image",)))]

    messages = [*rehearsal_notes(plan), *notes, *image_notes(plan), *idle_note(plan)]
    return [*issues, *map(warning, messages)]


def image_notes(plan: Plan) -> list[str]:
    """Return what our image lacks for the instance types; empty for an image of the spec."""
    recipe = plan.target.image.recipe if plan.target.image else None
    types = plan.target.instances
    if recipe is None or recipe.kind != "cuda":
        return []

    args = dict(arg.partition("=")[::2] for arg in recipe.args)
    if args.get("TORCH", "cuda") != "cuda":
        return []
    for name in types:
        row = find_instance(plan.target.provider, name)
        if row and row.gpu in _BEFORE_TURING:
            return [
                f"{name} ({row.gpu}) is older than what our image's torch has code for (CUDA 13: compute"
                " capability 7.5 and later): name an image with CUDA 12 or older, or build your"
                " own: image: {build: docker/Dockerfile}"
            ]

    return []


def idle_note(plan: Plan) -> list[str]:
    """Return a note if more GPUs per node are paid for than processes are started."""
    if plan.spec.launcher == "none":  # a command drives all of them, as it likes
        return []
    idle = plan.gpus - plan.processes
    per_node = f"{idle} of {plan.gpus} GPUs per node"
    if idle > 0:
        return [f"{per_node} stay idle unless a process drives several"]

    return []


def rehearsal_notes(plan: Plan) -> list[str]:
    """Describe how a rehearsal, or a plan with placeholders, differs from the real job."""
    if not plan.is_rehearsal:
        return _preview_notes(plan)

    config = plan.target.config_as(CloudConfig)
    spec = plan.spec
    name = plan.target.provider
    host_image = plan.host.image_address
    is_same_image = host_image == plan.target.image_address or _same_recipe(
        plan.host.image, plan.target.image
    )

    notes = [] if is_same_image else [f"rehearsed {_environment(host_image)}, not in the image"]
    if config.placeholders:
        missing = ", ".join(config.placeholders)
        notes.append(f"{missing} not set: rehearsed with a placeholder; {name} will ask for it")

    notes += [f"with --provider {name} it will be refused: {message}" for message in config.unpaid]
    host_providers = {plan.host.provider, *plan.host.declaration.fallback_providers}

    local_inputs = [name for name, item in spec.inputs.items() if host_providers & set(item.uri)]
    if local_inputs:
        how = "mounted read-only" if host_image else "what the job writes there stays"
        notes.append(f"inputs {', '.join(local_inputs)} are the local folders themselves: {how}")
    if spec.checkpoints.uri:
        notes.append(f"checkpoints stay here: {spec.checkpoints.uri} is neither read nor written")

    return notes


def _preview_notes(plan: Plan) -> list[str]:
    """List missing settings of the account, and obstacles to the real job."""
    missing = plan.target.placeholders
    name = plan.target.provider
    if not missing:
        return []

    variable = variable_of(missing[0])
    notes = [
        f"{', '.join(missing)} not set, shown as placeholders: set these before you submit, in"
        f" cloudtrain.toml or {variable}{', …' if missing[1:] else ''}"
    ]
    return notes + [
        f"with --provider {name} it will be refused: {message}"
        for message in plan.target.config_as(CloudConfig).unpaid
    ]


def _same_recipe(first: PlannedImage | None, second: PlannedImage | None) -> bool:
    """Return True if two images have the same files and arguments, for any architecture."""
    recipes = [image.recipe for image in (first, second) if image and image.recipe]
    if len(recipes) != 2:
        return False
    return len({(recipe.dockerfile, recipe.kind, recipe.args) for recipe in recipes}) == 1


def _environment(host_image: str) -> str:
    if not host_image:
        return "with this machine's Python and torch"

    return f"in {host_image}"
