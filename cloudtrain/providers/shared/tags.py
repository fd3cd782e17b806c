"""The tags by which a job is found again from any machine. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from cloudtrain import __version__

if TYPE_CHECKING:  # looking after a run needs no pydantic
    from cloudtrain.planning.plan import Plan

TAG_PREFIX = "cloudtrain-"
"""Beginning of our tags, and of other names that we add beside the user's."""


def tags(plan: Plan, image: str) -> dict[str, str]:
    """All tags of a job: ours, then the user's. `image`: the image address in the request."""
    context = plan.context
    digest = re.search(r"@(sha256:[0-9a-f]{64})$", image)
    rehearsal = context.rehearsal
    git = {"git-commit": context.git_commit} if context.git_commit else {}
    if context.git_commit and context.git_dirty is not None:
        git["git-dirty"] = str(context.git_dirty).lower()
    own = {
        "run": plan.run_id,
        "name": plan.spec.name,
        "spec": plan.spec_digest,
        "source": context.source.digest,
        "processes": str(plan.processes),
        "planned": f"{context.time:.3f}",
        **({"owner": context.owner} if context.owner else {}),
        **git,
        **({"rehearsed": rehearsal.run} if rehearsal and not rehearsal.changes else {}),
        **({"image-digest": digest[1]} if digest else {}),
        "version": __version__,
    }
    return {**{f"{TAG_PREFIX}{key}": value for key, value in own.items()}, **plan.spec.tags}


def own_tags(all_tags: Mapping[str, Any]) -> dict[str, str]:
    """Our tags among those of a job, without their prefix."""
    return {
        key.removeprefix(TAG_PREFIX): str(value)
        for key, value in all_tags.items()
        if key.startswith(TAG_PREFIX)
    }


def same_submission(expected: Mapping[str, str], found: Mapping[str, str]) -> bool:
    """Whether two sets of our tags belong to the same submission, not only to jobs of the same
    name.
    """
    return all(expected.get(key) == found.get(key) for key in ("run", "planned", "spec"))
