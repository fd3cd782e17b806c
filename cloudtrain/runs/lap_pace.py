"""How long the steps to come will take, by the laps that were seen: their mean pace, its error, and
its trend. Pure.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import combinations, dropwhile
from statistics import linear_regression, median

from cloudtrain.runs.laps import Lap

SCALES = 12, 6, 3
"""The laps are put together into so many parts of about the same length, whose paces are compared.
A machine that is slower for minutes shows in few long parts, steps that differ from one to the next
in many short ones.
"""

USUAL_SPREAD = 0.08
USUAL_PARTS = 3
"""The relative spread of paces that is assumed before it is seen, and how many parts that counts
for.
"""

FLOOR = 0.08
"""What the pace of the rest differs by at least, as a part of it: a machine's speed does not stay
as it is.
"""

WIDTH = 3.5
"""The half width of the interval in standard errors of the mean pace: the rest has an error of its
own, too.
"""

TREND_PARTS = 7
MIN_TREND_PARTS = 5
TREND_PAIRS = 0.93
TREND = 1.1
"""Steps get slower, or faster, where that share of all pairs of parts differs in that direction,
and the last part from the first by this factor. By chance fewer than one history in fifty look so;
one in ten where a machine's load changes.
"""

LONGEST_TREND = 2.0
"""A trend is followed until steps take so many times as long as the latest ones, or as many times
less.
"""

STILL_WARM_UP = 2.0
"""The first laps count as warm-up, too, while they are so many times as slow as the median lap."""


def pace_of(laps: Sequence[Lap]) -> tuple[float, float]:
    """Seconds per step, and how much that of the steps to come may differ, as a part of it."""
    steady = _steady(laps)
    seconds = sum(lap.seconds for lap in steady)
    steps = sum(lap.steps for lap in steady)
    mean = seconds / steps
    return mean, math.hypot(
        FLOOR, WIDTH * max(_standard_error(steady, seconds / parts, mean) for parts in SCALES)
    )


def trend_of(laps: Sequence[Lap], rest: float) -> float | None:
    """Seconds per step of the steps to come, if steps go on to get slower, or faster, as they have;
    None: they do not.

    `rest`: how many are to come.
    """
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
    led = begin + slope * (parts[-1].end + rest / 2)
    return min(max(led, paces[-1] / LONGEST_TREND), paces[-1] * LONGEST_TREND)


def _steady(laps: Sequence[Lap]) -> list[Lap]:
    """Without the first ones, while they are much slower than the others."""
    usual = median(lap.seconds / lap.steps for lap in laps)
    return list(dropwhile(lambda lap: lap.seconds / lap.steps > STILL_WARM_UP * usual, laps))


def _standard_error(laps: Sequence[Lap], seconds: float, mean: float) -> float:
    """Of the mean pace, as a part of it, by parts that are at least so long."""
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
    """Neighbours put together until they are as long."""
    merged: list[Lap] = []
    for lap in laps:
        if merged and merged[-1].seconds < seconds:
            last = merged.pop()
            lap = Lap(lap.end, last.steps + lap.steps, last.seconds + lap.seconds)
        merged.append(lap)
    return merged
