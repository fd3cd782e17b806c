"""Metrics of the shared trainer: which it reports, and how often.

Other programs may report anything.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cloudtrain.errors import did_you_mean
from cloudtrain.spec.search_space import Choice, Dimension

REPORTED: Mapping[str, str] = {
    "loss": "minimize",
    "val_loss": "minimize",
    "val_accuracy": "maximize",
}
"""Metrics that the shared trainer reports after an epoch, with the better direction."""

LENGTHS = ("epochs", "eval-every")
"""Options of the shared trainer that set the number of evaluations."""
_ENDS_EARLY = ("max-steps", "patience", "eval-every-steps")
"""Options that make the number of evaluations differ from the epochs."""


def is_own_task(args: Mapping[str, Any]) -> bool:
    """Return whether the trainer runs a model or task of the user, with its own metrics."""
    return any(":" in str(args.get(name, "")) for name in ("task", "model"))


def unreported(metric: str, args: Mapping[str, Any]) -> tuple[str, str] | None:
    """Return why the shared trainer never reports a metric, with a hint, or None."""
    if metric in REPORTED or (is_own_task(args) and metric.startswith("val_")):
        return None
    suffix = ", and val_… for each measure of your task" if is_own_task(args) else ""
    suggestion = did_you_mean(metric, REPORTED)
    return (
        f"the shared trainer does not report {metric!r}{suggestion}",
        f"it reports {', '.join(REPORTED)}{suffix}",
    )


def report_count(
    metric: str, args: Mapping[str, Any], space: Mapping[str, Dimension]
) -> int | None:
    """Return how often the trainer reports a metric in the longest trial; None: unknown.

    `args`: arguments by name. `space`: varied arguments by name; they replace `args`.
    """
    if any(name in args or name in space for name in _ENDS_EARLY):
        return None
    epochs = max(_values("epochs", args, space), default=None)
    every = [1]
    if metric != "loss" and ("eval-every" in args or "eval-every" in space):
        every = _values("eval-every", args, space)
    return None if epochs is None or not every else -(-epochs // min(every))


def _values(name: str, args: Mapping[str, Any], space: Mapping[str, Dimension]) -> list[int]:
    """Return the positive whole numbers of an argument; empty if it may be anything else."""
    dimension = space.get(name)
    if dimension is None:
        candidates: tuple[Any, ...] = (args.get(name),)
    elif isinstance(dimension, Choice):
        candidates = dimension.values
    else:
        candidates = (dimension.low, dimension.high)

    numbers = []
    for value in candidates:
        if isinstance(value, bool) or not isinstance(value, int) or value <= 0:
            return []
        numbers.append(int(value))
    return numbers
