"""Charts of a run: metrics, throughput and utilisation."""

from __future__ import annotations

import math
from collections.abc import Sequence

from cloudtrain.pages.axes import HEIGHT, WIDTH, frame, pieces, x_scale, y_scale
from cloudtrain.pages.story import Story
from cloudtrain.pages.svg import Point, line, picture
from cloudtrain.pages.timeline import time_unit

Curves = Sequence[tuple[str, Sequence[Point]]]
"""Points of each curve, with the name that its tooltip shows."""


def metric_chart(name: str, points: Sequence[Point], *, x_name: str = "step") -> str:
    """Draw one metric over the steps, or over its reports."""
    return _chart("", [(name, points)], x_name, "curve best", label=name)


def unseen_values(points: Sequence[Point]) -> str:
    """Describe the values that a chart cannot show: infinite ones, and those outside of it."""
    finite = [value for _, value in points if math.isfinite(value)]
    y = y_scale(finite)
    beyond = [value for value in finite if not y.low <= value <= y.high]
    sentences = []
    if len(finite) < len(points):
        sentences.append(
            f"{len(points) - len(finite)} of {len(points)} values are NaN or infinite."
        )
    if beyond:
        sentences.append(f"{len(beyond)} values lie outside of the chart.")
    return " ".join(sentences)


def throughput_chart(name: str, story: Story) -> str:
    """Draw samples per second over the time since the run was submitted."""
    return _over_time("samples per second", story, [(name, story.throughput)], "curve best")


def busy_chart(name: str, story: Story) -> str:
    """Draw how busy each GPU, or the cores of each rank, were since the run was submitted."""
    title = "GPU busy (%)" if story.gpus else "CPU of each rank (100 % is a core)"
    curves = [(f"{name}, {label}", points) for label, points in story.busy.items()]
    return _over_time(title, story, curves, "curve good", highest=100.0)


def _over_time(
    name: str, story: Story, curves: Curves, class_: str, *, highest: float = 0.0
) -> str:
    """Draw curves over time, from zero: a 1 % difference must not look like a collapse."""
    longest = story.end - story.begin
    unit, size = time_unit(longest)
    shifted = [
        (label, [((time - story.begin) / size, value) for time, value in points])
        for label, points in curves
    ]
    reach = (0.0, longest / size), (0.0, highest)
    return _chart(name, shifted, f"time since it was submitted ({unit})", class_, reach=reach)


def _chart(
    name: str,
    curves: Curves,
    x_name: str,
    class_: str,
    label: str = "",
    reach: tuple[Sequence[float], Sequence[float]] = ((), ()),
) -> str:
    """Draw curves, or return nothing if no point is finite.

    `name` is shown above the axis; without it `label` is the accessible name. `reach`: values that
    the horizontal and the vertical axis always include.
    """
    everything = [point for _, points in curves for point in points if math.isfinite(point[1])]
    if not everything:
        return ""
    across = [*(at for at, _ in everything), *reach[0]]
    x = x_scale(min(across), max(across))
    y = y_scale(*([value for _, value in points] for _, points in curves), ends=reach[1])
    whole = all(at == int(at) for at, _ in everything)
    parts = [
        frame(
            x, y, x_name, name, [tick for tick in x.ticks() if tick == int(tick)] if whole else None
        )
    ]
    for title, points in curves:
        for piece in pieces(points):
            drawn = [(x.at(at), y.at(value)) for at, value in (*piece, piece[-1])]
            parts.append(line(drawn, class_ if len(piece) > 1 else f"{class_} alone", title))
    return picture(WIDTH, HEIGHT, f"{name or label} over the {x_name}", *parts)
