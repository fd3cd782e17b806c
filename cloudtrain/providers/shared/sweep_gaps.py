"""Refuse parts of a `sweep` section that no cloud's own service supports. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from cloudtrain.issues import Issue
from cloudtrain.planning.plan import Plan
from cloudtrain.planning.tuned import sweep_of

PORTABLE = "engine: portable does this from your machine, with the same section"


def gap_issues(plan: Plan, service: str, *, has_target: bool = True) -> Iterator[Issue]:
    """Yield an issue for each part that a service would ignore.

    `service`: its name in a sentence. `has_target`: whether it can stop at a value of the
    objective.
    """
    sweep = sweep_of(plan)
    if sweep.try_first:
        yield Issue(("sweep", "try_first"), f"{service} chooses all values itself", PORTABLE)
    if sweep.objective.target is not None and not has_target:
        yield Issue(
            ("sweep", "objective", "target"),
            f"{service} stops at no value of its objective",
            PORTABLE,
        )
