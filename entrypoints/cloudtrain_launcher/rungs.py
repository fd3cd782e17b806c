"""Asynchronous successive halving: whether a trial goes on, by the values that others had at the
same rung.

The client decides with it which trials are promoted, and each job by itself whether it goes on.
Standard library only. Source: Li et al., A System for Massively Parallel Hyperparameter Tuning,
MLSys 2020 (arXiv 1810.05934), algorithm 2.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

MAX_RUNGS = 20


def rungs_of(grace: int, eta: int, last: int | None) -> list[int]:
    """At which reports trials are compared, from 1; `last`: the reports of a whole trial, None if
    that is unknown.

    Exactly grace, grace x eta, grace x eta^2, ..., all of them below `last`.
    """
    rungs = [grace * eta**power for power in range(MAX_RUNGS)]
    return [rung for rung in rungs if last is None or rung < last]


def is_better(one: float, other: float, goal: str) -> bool:
    """Whether the first value is strictly better; NaN is worse than everything. `goal`: minimize or
    maximize.
    """
    if math.isnan(one):
        return False
    return math.isnan(other) or (one > other if goal == "maximize" else one < other)


def goes_on(own: float, others: Iterable[float], eta: int, goal: str) -> bool:
    """Whether a trial that has just reached a rung goes on, and is not ended there.

    `others`: the values of the other trials at this rung so far. As long as there are fewer than
    `eta` in all, every one goes on; then only the best 1/eta of them, at least one. A value that is
    not a number never does.
    """
    if math.isnan(own):
        return False
    values = list(others)
    count = len(values) + 1
    if count < eta:
        return True
    better = sum(is_better(value, own, goal) for value in values)
    return better < max(1, count // eta)


def promotable(
    values: Mapping[int, float], promoted: Iterable[int], eta: int, goal: str
) -> int | None:
    """The best trial of a rung that is among its best 1/eta and was not promoted yet; None for
    none.

    `values`: trial -> its value at this rung. Of equal ones the earlier trial is better.
    """
    done = set(promoted)
    sign = -1.0 if goal == "maximize" else 1.0
    numbers = [trial for trial in values if not math.isnan(values[trial])]
    ranked = sorted(numbers, key=lambda trial: (sign * values[trial], trial))
    return next((trial for trial in ranked[: len(values) // eta] if trial not in done), None)
