"""When a sweep is given up: no trial has reported a number, and trying other values would not
change that. Pure.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cloudtrain.sweeps.state import SweepState, Trial

MAX_ALIKE = 3
"""Trials that may end for the same cause, one that no value of a setting explains."""
MAX_WITHOUT_RESULT = 8
"""Trials that may end without a number for any cause: settings may explain it. If half of a space
fails, so many in a row are 1 in 256.
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
    """Return the reason to start no more trials; empty to go on.

    Trials before the latest extension of the sweep do not count: who asks for more has looked at
    them.
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
    """Return what trials that were lost for the same reason share; empty if a value may be the
    reason.
    """
    if trial.state == "completed":
        return "" if trial.reports else "no report"
    return trial.cause if trial.cause in INDEPENDENT_OF_VALUES else ""


def _what_happened(trials: Sequence[Trial], metric: str) -> str:
    if trials[0].state == "completed":
        return f"trained to their end without reporting {metric}"
    return f"failed alike ({trials[-1].reason})"
