"""Geometry of charts: axes, curves and marks as plain values, which `chart.html` draws.

Positions are pixels from the upper left corner of the plot, which the axes enclose.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from cloudtrain.units import format_number

Point = tuple[float, float]

WIDTH = 362.0
HEIGHT = 200.0
MARGIN = 8.0
"""Room at the left and right end of the plot."""
CHARACTER = 8.0
"""Width of a digit in a chart on a phone, where letters are larger."""
MAX_POINTS = 300
"""Maximum points drawn of one curve."""
FLATTENED = 10
"""Leave outliers outside if they flatten the other values to less than 1/10 of the chart."""


@dataclass(frozen=True, slots=True)
class Axis:
    """Numbers from `low` to `high`, drawn from `start` to `end`.

    A value outside is drawn at the edge.
    """

    name: str
    low: float
    high: float
    start: float
    end: float
    counts: bool = False
    """True if the numbers count something, so that ticks are whole."""

    def at(self, value: float) -> float:
        """Return the position of a value."""
        # Halves: 1e308 and -1e308 lie too far apart.
        span = self.high / 2 - self.low / 2
        if span > 0:
            share = (value / 2 - self.low / 2) / span
        else:
            share = 0.5

        return self.start + (self.end - self.start) * min(max(share, 0.0), 1.0)

    def ticks(self) -> Sequence[tuple[float, str]]:
        """Return the positions and labels of up to twelve round numbers."""
        numbers = self._round_numbers()
        return list(zip(map(self.at, numbers), labels_of(numbers), strict=True))

    def _round_numbers(self) -> Sequence[float]:
        span = self.high - self.low
        if span == 0:
            return [self.low]
        if not 1e-300 < span < 1e300:
            return [self.low, self.high]

        unit = 10.0 ** math.floor(math.log10(span / 5))
        step = unit
        for factor in (1, 2, 5, 10):
            step = unit * factor
            if span / step <= 6:
                break

        if self.counts:
            step = max(step, 1.0)

        first = math.ceil(self.low / step - 1e-9)
        numbers = [number * step for number in range(first, first + 12)]
        return [number for number in numbers if number <= self.high + step * 1e-9]


def labels_of(numbers: Sequence[float]) -> Sequence[str]:
    """Format numbers with enough digits that no two labels are equal."""
    labels = []
    for number in numbers:
        if abs(number) < 1e-300:
            labels.append(format_number(0.0))
        else:
            labels.append(format_number(number))

    digits = 7
    while len(set(labels)) < len(set(numbers)) and digits <= 17:
        labels = [f"{number:.{digits}g}" for number in numbers]
        digits += 5

    return labels


def x_axis(name: str, low: float, high: float, *, counts: bool = True) -> Axis:
    """Return the axis to the right."""
    if high <= low:
        high = low + 1

    return Axis(name, low, high, MARGIN, WIDTH - MARGIN, counts)


def y_axis(name: str, values: Iterable[float]) -> Axis:
    """Return the upward axis for these values, with a small margin.

    Outliers, as after a divergence, stay outside.
    """
    low, high = usual_range(values)
    room = (high - low) * 0.05 or abs(low) * 0.05 or 1.0
    return Axis(name, low - room, high + room, HEIGHT, 0.0)


def usual_range(values: Iterable[float]) -> tuple[float, float]:
    """Return the lowest and the highest value, without outliers that flatten the others.

    An outlier lies five times the width of the middle half away from it.
    """
    ordered = sorted(value for value in values if math.isfinite(value))
    if not ordered:
        return 0.0, 1.0

    quarter = ordered[len(ordered) // 4]
    three = ordered[(3 * len(ordered)) // 4]
    reach = 5 * (three - quarter) or math.inf
    low = max(ordered[0], quarter - reach)
    high = min(ordered[-1], three + reach)

    if ordered[-1] / FLATTENED - ordered[0] / FLATTENED > high - low:
        return low, high

    return ordered[0], ordered[-1]


@dataclass(frozen=True, slots=True)
class Curve:
    """A line with its tooltip, in pieces where values are missing."""

    title: str
    pieces: Sequence[Sequence[Point]]
    is_best: bool = True


@dataclass(frozen=True, slots=True)
class Mark:
    """A sign at a point, with its tooltip."""

    shape: str
    x: float
    y: float
    title: str
    is_best: bool


@dataclass(frozen=True, slots=True)
class Rung:
    """A dashed line upwards, with its name if that fits."""

    x: float
    name: str
    name_x: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Chart:
    """Everything that one chart shows."""

    label: str
    """Text for a screen reader."""
    x: Axis
    y: Axis
    curves: Sequence[Curve] = ()
    marks: Sequence[Mark] = ()
    rungs: Sequence[Rung] = ()
    best_so_far: Sequence[Point] = ()
    """Points where the best value changes; between them it is level."""
    width: float = WIDTH
    height: float = HEIGHT


def curve(title: str, points: Sequence[Point], x: Axis, y: Axis, *, is_best: bool = True) -> Curve:
    """Return a curve through points whose values are finite, thinned out."""
    pieces = []
    for piece in thinned(points):
        pieces.append([(x.at(at), y.at(value)) for at, value in piece])

    return Curve(title, pieces, is_best)


def thinned(points: Sequence[Point]) -> Sequence[Sequence[Point]]:
    """Split a curve where values are not finite, and thin it out.

    Of points in one place keep the lowest and the highest, so that no peak is lost.
    """
    if len(points) <= MAX_POINTS:
        every = 1
    else:
        every = math.ceil(2 * len(points) / MAX_POINTS)

    pieces: list[list[Point]] = [[]]
    for begin in range(0, len(points), every):
        finite = [point for point in points[begin : begin + every] if math.isfinite(point[1])]
        if not finite:
            pieces.append([])
            continue

        lowest = finite.index(min(finite, key=lambda point: point[1]))
        highest = finite.index(max(finite, key=lambda point: point[1]))
        pieces[-1] += [finite[number] for number in sorted({lowest, highest})]

    return [piece for piece in pieces if piece]


def rungs(places: Sequence[float]) -> Sequence[Rung]:
    """Return a line at each place; one has its name only if it ends before the next name."""
    result = []
    free = WIDTH
    for number, x in reversed(list(enumerate(places, 1))):
        name = f"rung {number}"
        room = CHARACTER * len(name)
        name_x = min(x, WIDTH - room)
        if name_x + room > free:
            name = ""
        else:
            free = name_x

        result.append(Rung(x, name, name_x))

    return result
