"""Curves of one run or two: metrics over steps, throughput over time, how busy GPUs or ranks were,
phases of ranks.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from cloudtrain.pages.axes import HEIGHT, WIDTH, frame, inside, pieces, x_scale, y_scale
from cloudtrain.pages.story import Story
from cloudtrain.pages.svg import Point, line, picture
from cloudtrain.pages.timeline import time_unit
from cloudtrain.units import format_number

Curves = Sequence[tuple[str, Sequence[Point]]]
"""Each with its name, which is shown where the mouse rests."""
CLASSES = ("curve best", "curve second")
"""Of the first run and of the second."""


def metric_chart(name: str, curves: Curves, *, x_name: str = "step") -> str:
    """One metric over the steps of each run, or over its reports."""
    return _chart("", curves, x_name, CLASSES, label=name)


def unseen_values(curves: Curves, ends: Sequence[float] = ()) -> str:
    """What a chart of these curves does not show, in words: values beyond its axis, and those that
    are no number.
    """
    values = [value for _, points in curves for _, value in points]
    finite = [value for value in values if math.isfinite(value)]
    y = y_scale(*_values_of(curves), ends=ends)
    found = []
    if len(finite) < len(values):
        found.append(f"{len(values) - len(finite)} of {len(values)} values are NaN or infinite.")
    if above := [value for value in finite if value > y.high]:
        found.append(f"Above the chart: {_values(above)}, up to {format_number(max(above))}.")
    if below := [value for value in finite if value < y.low]:
        found.append(f"Below the chart: {_values(below)}, down to {format_number(min(below))}.")
    return " ".join(found)


def throughput_chart(stories: Sequence[tuple[str, Story]]) -> str:
    """Samples per second of each run, over the time since it was submitted."""
    return _over_time(
        "samples per second", [(name, story, story.throughput) for name, story in stories], CLASSES
    )


def busy_chart(name: str, story: Story) -> str:
    """How busy each GPU was, or each rank's cores, over the time since the run was submitted. A
    thin line for each.
    """
    what = "GPU busy (%)" if story.gpus else "CPU of each rank (100 % is a core)"
    curves = [(f"{name}, {each}", story, points) for each, points in story.busy.items()]
    return _over_time(what, curves, ("curve good",) * len(curves), highest=100.0)


def _values_of(curves: Curves) -> list[list[float]]:
    return [[value for _, value in points] for _, points in curves]


def _values(found: Sequence[float]) -> str:
    return "1 value" if len(found) == 1 else f"{len(found)} values"


def _over_time(
    name: str,
    curves: Sequence[tuple[str, Story, Sequence[Point]]],
    classes: Sequence[str],
    *,
    highest: float = 0.0,
) -> str:
    """From zero: a share or a rate that differs by a hundredth must not look like a collapse."""
    longest = max((story.end - story.begin for _, story, _ in curves), default=0.0)
    unit, size = time_unit(longest)
    shifted = [
        (label, [((t - story.begin) / size, v) for t, v in points])
        for label, story, points in curves
    ]
    reach = (0.0, longest / size), (0.0, highest)
    return _chart(name, shifted, f"time since it was submitted ({unit})", classes, reach=reach)


def _chart(
    name: str,
    curves: Curves,
    x_name: str,
    classes: Sequence[str],
    label: str = "",
    reach: tuple[Sequence[float], Sequence[float]] = ((), ()),
) -> str:
    """`name` stands above the axis; `label` is read out where there is none. Nothing without a
    finite point.

    `reach`: values that lie on the axis across in any case, and on that upwards.
    """
    everything = [point for _, points in curves for point in points if math.isfinite(point[1])]
    if not everything:
        return ""
    across = [*(at for at, _ in everything), *reach[0]]
    x = x_scale(min(across), max(across))
    y = y_scale(*_values_of(curves), ends=reach[1])
    whole = all(at == int(at) for at, _ in everything)
    parts = [
        frame(
            x, y, x_name, name, [tick for tick in x.ticks() if tick == int(tick)] if whole else None
        )
    ]
    for (title, points), class_ in zip(curves, classes, strict=False):
        for part in (part for piece in pieces(points) for part in inside(piece, y)):
            drawn = [(x.at(at), y.at(value)) for at, value in (*part, part[-1])]
            parts.append(line(drawn, class_ if len(part) > 1 else f"{class_} alone", title))
    return picture(WIDTH, HEIGHT, f"{name or label} over the {x_name}", *parts)
