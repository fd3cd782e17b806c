"""Asynchronous successive halving: comparison of a trial with others at the same rung.

The client decides which trials are promoted; each job decides whether it continues. Standard
library only. Source: Li et al., A System for Massively Parallel Hyperparameter Tuning, MLSys 2020
(arXiv 1810.05934), algorithm 2.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from cloudtrain_wire.events import Metrics

MAX_RUNGS = 20


def rungs_of(grace: int, eta: int, last: int | None) -> list[int]:
    """Return the rungs, reports from 1 that compare trials: grace * eta^n below `last`.

    `last`: the number of reports of a whole trial, None if unknown.
    """
    rungs = [grace * eta**power for power in range(MAX_RUNGS)]
    if last is None:
        return rungs

    return [rung for rung in rungs if rung < last]


def is_better(first: float, second: float, goal: str) -> bool:
    """Return whether the first value is strictly better. NaN is worst.

    `goal`: minimize or maximize.
    """
    if math.isnan(first):
        return False
    if math.isnan(second):
        return True
    if goal == "maximize":
        return first > second

    return first < second


def goes_on(metric: float, peers: Iterable[float], eta: int, goal: str) -> bool:
    """Return whether a trial at a rung continues.

    `peers`: the present values of the other trials at this rung. All of the first `eta` - 1 trials
    continue; later ones only if they are among the best 1/eta, at least one. NaN never continues.
    """
    if math.isnan(metric):
        return False

    values = list(peers)
    count = len(values) + 1
    if count < eta:
        return True

    better = sum(is_better(value, metric, goal) for value in values)

    return better < max(1, count // eta)


def promotable(
    values: Mapping[int, float], promoted: Iterable[int], eta: int, goal: str
) -> int | None:
    """Return the best trial among the best 1/eta of a rung and not promoted yet, or None.

    `values`: trial -> its value at this rung. Of equal ones the earlier trial is better.
    """
    promoted_trials = set(promoted)
    sign = -1.0 if goal == "maximize" else 1.0
    numbers = [trial for trial in values if not math.isnan(values[trial])]
    ranked = sorted(numbers, key=lambda trial: (sign * values[trial], trial))

    for trial in ranked[: len(values) // eta]:
        if trial not in promoted_trials:
            return trial

    return None


class MetricReports:
    """Reports of a trial. A report that a program repeats after a restart counts once."""

    def __init__(self, metric: str, count: int = 0, position: float | None = None) -> None:
        """Start at the `count` and `position` of the trial's earlier runs."""
        self.metric = metric
        self.count = count
        """Return the number of counted reports."""
        self.position = position
        """Return the step of the latest report, or its epoch without a step, or None."""

    def add(self, event: Metrics) -> float | None:
        """Return the value if the event is the next report, number `count`; else None."""
        value = event.values.get(self.metric)
        if value is None:
            return None

        position = event.epoch if event.step is None else event.step
        if position is not None and self.position is not None and position <= self.position:
            return None

        self.count += 1
        self.position = position

        return value
