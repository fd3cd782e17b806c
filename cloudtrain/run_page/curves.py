"""Curves of one run or two: metrics over steps, throughput over time, how busy GPUs or ranks were, phases of ranks."""

from __future__ import annotations

import math
from collections.abc import Sequence

from cloudtrain.charts.axes import HEIGHT, WIDTH, frame, pieces, x_scale, y_scale
from cloudtrain.charts.svg import Point, line, picture
from cloudtrain.run_page.story import Story
from cloudtrain.run_page.timeline import time_unit

Curves = Sequence[tuple[str, Sequence[Point]]]
"""Each with its name, which is shown where the mouse rests."""
CLASSES = ("curve best", "curve second")
"""Of the first run and of the second."""


def metric_chart(name: str, curves: Curves) -> str:
    """One metric over the steps of each run."""
    return _chart("", curves, "step", CLASSES, label=name)


def throughput_chart(stories: Sequence[tuple[str, Story]]) -> str:
    """Samples per second of each run, over the time since its start."""
    return _over_time("samples per second", [(name, story, story.throughput) for name, story in stories], CLASSES)


def busy_chart(name: str, story: Story) -> str:
    """How busy each GPU was, or each rank's cores, over the time since the run's start. A thin line for each."""
    what = "GPU busy (%)" if story.gpus else "CPU of each rank (100 % is a core)"
    curves = [(f"{name}, {each}", story, points) for each, points in story.busy.items()]
    return _over_time(what, curves, ("curve good",) * len(curves))


def _over_time(name: str, curves: Sequence[tuple[str, Story, Sequence[Point]]], classes: Sequence[str]) -> str:
    unit, size = time_unit(max((story.end - story.begin for _, story, _ in curves), default=0.0))
    shifted = [(label, [((t - story.begin) / size, v) for t, v in points]) for label, story, points in curves]
    return _chart(name, shifted, f"time since the start ({unit})", classes)


def _chart(name: str, curves: Curves, x_name: str, classes: Sequence[str], label: str = "") -> str:
    """`name` stands above the axis; `label` is read out where there is none. Nothing without a finite point."""
    finite = [[point for point in points if math.isfinite(point[1])] for _, points in curves]
    everything = [point for points in finite for point in points]
    if not everything:
        return ""
    x = x_scale(min(at for at, _ in everything), max(at for at, _ in everything))
    y = y_scale([value for _, value in everything])
    parts = [frame(x, y, x_name, name)]
    for (title, points), class_ in zip(curves, classes, strict=False):
        parts += [
            line([(x.at(at), y.at(value)) for at, value in (*piece, piece[-1])], class_, title)  # one alone is a dot
            for piece in pieces(points)
        ]
    return picture(WIDTH, HEIGHT, f"{name or label} over the {x_name}", *parts)
