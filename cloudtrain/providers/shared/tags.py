"""Tags that identify a job from any machine. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from cloudtrain import __version__

if TYPE_CHECKING:  # watching a run does not need pydantic
    from cloudtrain.planning.plan import Plan

TAG_PREFIX = "cloudtrain-"
"""Prefix of our tags, and of other names that we add to the user's."""


def tags(plan: Plan, image: str) -> dict[str, str]:
    """Return all tags of a job: ours, then the user's. `image`: the address in the request."""
    context = plan.context
    digest = re.search(r"@(sha256:[0-9a-f]{64})$", image)
    rehearsal = context.rehearsal
    git = {"git-commit": context.git_commit} if context.git_commit else {}
    if context.git_commit and context.git_dirty is not None:
        git["git-dirty"] = str(context.git_dirty).lower()
    our_tags = {
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
    return {**{f"{TAG_PREFIX}{key}": value for key, value in our_tags.items()}, **plan.spec.tags}


def own_tags(all_tags: Mapping[str, Any]) -> dict[str, str]:
    """Return our tags among all tags of a job, without their prefix."""
    return {
        key.removeprefix(TAG_PREFIX): str(value)
        for key, value in all_tags.items()
        if key.startswith(TAG_PREFIX)
    }


def same_submission(expected: Mapping[str, str], actual: Mapping[str, str]) -> bool:
    """Return True if two sets of our tags belong to the same submission.

    Jobs of the same name may belong to different submissions.
    """
    return all(expected.get(key) == actual.get(key) for key in ("run", "planned", "spec"))
