"""What is known of the objective of a sweep before anything runs: whether it is reported, and how
often.

Of the shared trainer alone: another program may report what it likes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cloudtrain.issues import did_you_mean
from cloudtrain.spec.search_space import Choice, Dimension

REPORTED: Mapping[str, str] = {
    "loss": "minimize",
    "val_loss": "minimize",
    "val_accuracy": "maximize",
}
"""The metrics that the shared trainer reports after an epoch, and which of them are better."""

LENGTHS = ("epochs", "eval-every")
"""Options of the shared trainer that say how often it reports what it evaluates."""
_ENDS_EARLY = ("max-steps", "patience", "target-accuracy", "eval-every-steps")
"""Options by which a training has another number of evaluations than its epochs say."""


def is_own_task(args: Mapping[str, Any]) -> bool:
    """Whether the shared trainer trains a model or a task of the user's, whose metrics are its own."""
    return any(":" in str(args.get(name, "")) for name in ("task", "model"))


def unreported(metric: str, args: Mapping[str, Any]) -> tuple[str, str] | None:
    """Why the shared trainer never reports a metric, with a hint; None where it does, or may."""
    if metric in REPORTED or (is_own_task(args) and metric.startswith("val_")):
        return None
    own = ", and val_… for each measure of a task of yours" if is_own_task(args) else ""
    near = did_you_mean(metric, REPORTED)
    return (
        f"the shared trainer reports no {metric!r}{near}",
        f"it reports {', '.join(REPORTED)}{own}",
    )


def report_count(
    metric: str, args: Mapping[str, Any], space: Mapping[str, Dimension]
) -> int | None:
    """How often the shared trainer reports a metric in the longest trial; None where that is not
    known.

    `args`: by name, as the spec has them. `space`: by the argument's name; it takes the place of
    what `args` says.
    """
    if metric != "loss" and args.get("eval-only") is True:
        return 1
    if any(name in args or name in space for name in _ENDS_EARLY):
        return None
    epochs = _most("epochs", args, space)
    every = 1 if metric == "loss" else _least("eval-every", args, space)
    return None if epochs is None or every is None else -(-epochs // every)


def _most(name: str, args: Mapping[str, Any], space: Mapping[str, Dimension]) -> int | None:
    values = _values(name, args, space)
    return max(values) if values else None


def _least(name: str, args: Mapping[str, Any], space: Mapping[str, Dimension]) -> int | None:
    values = _values(name, args, space) if name in args or name in space else [1]
    return min(values) if values else None


def _values(name: str, args: Mapping[str, Any], space: Mapping[str, Dimension]) -> list[int]:
    """The whole numbers above 0 that an argument may be; none where it may be something else."""
    dimension = space.get(name)
    if dimension is None:
        found: tuple[Any, ...] = (args.get(name),)
    else:
        found = (
            dimension.values if isinstance(dimension, Choice) else (dimension.low, dimension.high)
        )
    whole = [
        int(each)
        for each in found
        if isinstance(each, int) and not isinstance(each, bool) and each > 0
    ]
    return whole if len(whole) == len(found) else []
