"""Charts of one run or two: metrics, throughput, utilisation, and phases of ranks."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from cloudtrain.pages.axes import HEIGHT, RIGHT, WIDTH, frame, inside, pieces, x_scale, y_scale
from cloudtrain.pages.document import legend
from cloudtrain.pages.story import Story
from cloudtrain.pages.svg import Point, line, picture, text
from cloudtrain.pages.timeline import time_unit
from cloudtrain.runs.step_times import PHASES, PhaseSums
from cloudtrain.units import format_number

Curves = Sequence[tuple[str, Sequence[Point]]]
"""Points of each curve, with the name that its tooltip shows."""
CLASSES = ("curve best", "curve second")
"""Style classes of the first and of the second run."""
BARS = 64.0
"""Left edge of the bars of phases, in pixels."""
ROW = 24.0
MAX_RANKS = 32
"""Maximum ranks with a bar of phases."""


def metric_chart(name: str, curves: Curves, *, x_name: str = "step") -> str:
    """Draw one metric over the steps of each run, or over its reports."""
    return _chart("", curves, x_name, CLASSES, label=name)


def unseen_values(curves: Curves, ends: Sequence[float] = ()) -> str:
    """Describe the values that a chart of these curves leaves out.

    They lie beyond its axis, or are not finite.
    """
    values = [value for _, points in curves for _, value in points]
    finite = [value for value in values if math.isfinite(value)]
    y = y_scale(*_values_of(curves), ends=ends)
    sentences = []
    if len(finite) < len(values):
        sentences.append(
            f"{len(values) - len(finite)} of {len(values)} values are NaN or infinite."
        )
    if above := [value for value in finite if value > y.high]:
        sentences.append(f"Above the chart: {_values(above)}, up to {format_number(max(above))}.")
    if below := [value for value in finite if value < y.low]:
        sentences.append(f"Below the chart: {_values(below)}, down to {format_number(min(below))}.")
    return " ".join(sentences)


def throughput_chart(stories: Sequence[tuple[str, Story]]) -> str:
    """Draw samples per second of each run over the time since it was submitted."""
    return _over_time(
        "samples per second", [(name, story, story.throughput) for name, story in stories], CLASSES
    )


def busy_chart(name: str, story: Story) -> str:
    """Draw how busy each GPU, or the cores of each rank, were since the run was submitted."""
    title = "GPU busy (%)" if story.gpus else "CPU of each rank (100 % is a core)"
    curves = [(f"{name}, {label}", story, points) for label, points in story.busy.items()]
    return _over_time(title, curves, ("curve good",) * len(curves), highest=100.0)


def _values_of(curves: Curves) -> list[list[float]]:
    return [[value for _, value in points] for _, points in curves]


def _values(values: Sequence[float]) -> str:
    return "1 value" if len(values) == 1 else f"{len(values)} values"


def _over_time(
    name: str,
    curves: Sequence[tuple[str, Story, Sequence[Point]]],
    classes: Sequence[str],
    *,
    highest: float = 0.0,
) -> str:
    """Draw curves over time, from zero: a 1 % difference must not look like a collapse."""
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
    """Draw curves, or return nothing if no point is finite.

    `name` is shown above the axis; without it `label` is the accessible name. `reach`: values that
    the horizontal and the vertical axis always include.
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


def phases_chart(totals: Mapping[int, PhaseSums]) -> str:
    """Draw a bar for each rank with the shares of its phases; nothing without step times."""
    ranks = [rank for rank, sums in totals.items() if sums.wall > 0][:MAX_RANKS]
    parts = []
    for row, rank in enumerate(ranks):
        y = 12.0 + ROW * row
        at = BARS
        parts.append(text(f"rank {rank}", 4, y + 4, class_="name"))
        for phase in PHASES:
            width = (RIGHT - BARS) * totals[rank].share(phase)
            title = f"{phase}: {totals[rank].share(phase):.0%}"
            parts.append(
                line([(at, y), (at + width, y)], f"span {phase}", title) if width >= 0.1 else ""
            )
            at += width
    return (
        picture(WIDTH, ROW * len(ranks), "where the time of each rank went", *parts)
        if ranks
        else ""
    )


def phases_legend(totals: Mapping[int, PhaseSums]) -> str:
    """Return the legend of phases as HTML, with the average share of each."""
    shares = {
        phase: sum(sums.share(phase) for sums in totals.values()) / max(len(totals), 1)
        for phase in PHASES
    }
    shown = [(phase, share) for phase, share in shares.items() if share >= 0.005]
    return legend(
        (line([(1, 8), (15, 8)], f"span {phase}"), f"{phase} {share:.0%}") for phase, share in shown
    )
