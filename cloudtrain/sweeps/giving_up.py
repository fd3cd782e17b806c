"""Rules that give up a sweep without results.

They apply if no trial has reported a number and other values would not change that. Pure.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cloudtrain.sweeps.state import SweepState, Trial

MAX_ALIKE = 3
"""Maximum trials that end for one cause that no value of a setting explains."""
MAX_WITHOUT_RESULT = 8
"""Maximum trials that end without a number for any cause.

If half of a space fails, the chance of this many failures in a row is 1 in 256.
"""
INDEPENDENT_OF_VALUES = frozenset(
    (
        "ImportError",
        "IndentationError",
        "ModuleNotFoundError",
        "NameError",
        "SyntaxError",
        "TabError",
    )
)
"""Exceptions that a program raises whatever its arguments are."""


def why_to_give_up(state: SweepState) -> str:
    """Return the reason to start no further trials; empty if the sweep may continue.

    Trials before the latest extension do not count: the user has seen their results.
    """
    if any(_has_result(trial) for trial in state.trials):
        return ""
    lost = [
        trial
        for trial in state.trials[state.extended_at :]
        if trial.state in ("failed", "completed")
    ]
    metric = state.definition.metric
    by_cause: dict[str, list[Trial]] = defaultdict(list)
    for trial in lost:
        by_cause[_cause(trial)].append(trial)

    for cause, trials in by_cause.items():
        if cause and len(trials) >= MAX_ALIKE:
            return (
                f"given up: {len(trials)} trials {_what_happened(trials, metric)}, which no value"
                " explains"
            )
    if len(lost) >= MAX_WITHOUT_RESULT:
        last = lost[-1].reason or f"it trained to its end without {metric}"
        return (
            f"given up: {len(lost)} trials ended, and none has reported {metric}; the last one:"
            f" {last}"
        )
    return ""


def _has_result(trial: Trial) -> bool:
    return any(math.isfinite(value) for value in trial.curve)


def _cause(trial: Trial) -> str:
    """Return a key of failures with one cause; empty if a value may be the cause."""
    if trial.state == "completed":
        return "" if trial.reports else "no report"
    return trial.cause if trial.cause in INDEPENDENT_OF_VALUES else ""


def _what_happened(trials: Sequence[Trial], metric: str) -> str:
    if trials[0].state == "completed":
        return f"trained to their end without reporting {metric}"
    return f"failed alike ({trials[-1].reason})"
