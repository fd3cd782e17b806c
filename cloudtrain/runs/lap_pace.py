"""Pace of the remaining steps from the observed laps: mean, standard error and trend. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import combinations, dropwhile
from statistics import linear_regression, median

from cloudtrain.runs.laps import Lap

SCALES = 12, 6, 3
"""Numbers of parts of similar length whose paces are compared.

A machine that is slow for minutes shows in few long parts; steps that vary show in many short ones.
"""

USUAL_SPREAD = 0.08
USUAL_PARTS = 3
"""Prior of the relative spread of paces, and its weight in parts."""

FLOOR = 0.08
"""Minimum relative error of the remaining pace, because a machine's speed varies."""

WIDTH = 3.5
"""Half width of the interval in standard errors of the mean, with room for later steps."""

TREND_PARTS = 7
MIN_TREND_PARTS = 5
TREND_PAIRS = 0.93
TREND = 1.1
"""Share of pairs of parts that must agree, and minimum change from first to last, for a trend.

By chance fewer than one run in fifty looks so; with a varying load on the machine one in ten.
"""

LONGEST_TREND = 2.0
"""Maximum factor between the last observed pace and the pace that a trend leads to."""

STILL_WARM_UP = 2.0
"""First laps count as warm-up while they are this many times slower than the median lap."""


def pace_of(laps: Sequence[Lap]) -> tuple[float, float]:
    """Return the seconds per step, and the relative error for the remaining steps."""
    steady = _steady(laps)
    seconds = sum(lap.seconds for lap in steady)
    steps = sum(lap.steps for lap in steady)
    mean = seconds / steps
    return mean, math.hypot(
        FLOOR, WIDTH * max(_standard_error(steady, seconds / parts, mean) for parts in SCALES)
    )


def trend_of(laps: Sequence[Lap], steps_left: float) -> float | None:
    """Return the seconds per remaining step if steps keep getting slower or faster, else None."""
    steady = _steady(laps)
    parts = _put_together(steady, sum(lap.seconds for lap in steady) / TREND_PARTS)
    paces = [part.seconds / part.steps for part in parts]
    if len(parts) < MIN_TREND_PARTS or not paces[0]:
        return None
    pairs = list(combinations(paces, 2))
    change = paces[-1] / paces[0]
    slower = sum(after > before for before, after in pairs) / len(pairs)
    is_slower = slower >= TREND_PAIRS and change > TREND
    is_faster = slower <= 1 - TREND_PAIRS and change < 1 / TREND
    if not (is_slower or is_faster):
        return None
    middles = [part.end - part.steps / 2 for part in parts]
    slope, begin = linear_regression(middles, paces)
    led = begin + slope * (parts[-1].end + steps_left / 2)
    return min(max(led, paces[-1] / LONGEST_TREND), paces[-1] * LONGEST_TREND)


def _steady(laps: Sequence[Lap]) -> list[Lap]:
    """Return the laps without the slow first ones."""
    usual = median(lap.seconds / lap.steps for lap in laps)
    return list(dropwhile(lambda lap: lap.seconds / lap.steps > STILL_WARM_UP * usual, laps))


def _standard_error(laps: Sequence[Lap], seconds: float, mean: float) -> float:
    """Return the relative standard error of the mean pace, by parts of at least these seconds."""
    parts = _put_together(laps, seconds)
    steps = sum(part.steps for part in parts)
    squares = (
        sum(part.steps * (part.seconds / part.steps / mean - 1) ** 2 for part in parts)
        / steps
        * len(parts)
    )
    variance = (squares + USUAL_PARTS * USUAL_SPREAD**2) / (len(parts) - 1 + USUAL_PARTS)
    return math.sqrt(variance / len(parts))


def _put_together(laps: Sequence[Lap], seconds: float) -> list[Lap]:
    """Return the laps with neighbours merged up to these seconds."""
    merged: list[Lap] = []
    for lap in laps:
        if merged and merged[-1].seconds < seconds:
            last = merged.pop()
            lap = Lap(lap.end, last.steps + lap.steps, last.seconds + lap.seconds)
        merged.append(lap)
    return merged
