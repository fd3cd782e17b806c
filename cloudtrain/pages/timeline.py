"""The timeline of a run: lanes of the job, its nodes and its first rank."""

from __future__ import annotations

from cloudtrain.pages import document as page
from cloudtrain.pages.axes import WIDTH, Scale, labels_of
from cloudtrain.pages.story import Moment, Span, Story
from cloudtrain.pages.svg import element, line, picture, plain, text, tooltip
from cloudtrain.units import format_duration

LEFT = 74.0
RIGHT = 412.0
TOP = 14.0
LANE = 30.0
KINDS = {
    "waiting": "waiting",
    "preparing": "preparing",
    "training": "training",
    "evaluating": "evaluating",
    "saving": "saving",
    "stopping": "stopping",
}
"""Kinds of spans, with their meaning in the legend."""
MARKS = {"checkpoint": "checkpoint", "restart": "restart or resume", "error": "error"}
"""Kinds of moments, with their meaning in the legend."""
_MOMENTS = {
    "checkpoint": "M0 -8L0 8",
    "restart": "M-5 -6L5 0L-5 6Z",
    "error": "M-5 -5L5 5M-5 5L5 -5",
}


def timeline(story: Story) -> str:
    """Draw all lanes over time."""
    lanes = sorted(
        {span.lane for span in story.spans} | {moment.lane for moment in story.moments}, key=_order
    )
    if not lanes:
        return ""
    unit, size = time_unit(story.end - story.begin)
    x = Scale(0.0, max(story.end - story.begin, 1e-3) / size, LEFT, RIGHT)
    bottom = TOP + LANE * len(lanes)
    parts = []
    for tick, label in zip(x.ticks(), labels_of(x.ticks()), strict=True):
        parts.append(line([(x.at(tick), TOP - 6), (x.at(tick), bottom)], "grid"))
        parts.append(text(f"{label} {unit}", x.at(tick), bottom + 14, anchor="middle"))

    def at(time: float) -> float:
        return x.at((time - story.begin) / size)

    for number, lane in enumerate(lanes):
        y = TOP + LANE * (number + 0.5)
        parts.append(text(lane, 4, y + 4, class_="name"))
        parts += [
            _span(span, at(span.begin), at(span.end), y)
            for span in story.spans
            if span.lane == lane
        ]
        parts += [
            _moment(moment, at(moment.time), y) for moment in story.moments if moment.lane == lane
        ]
    return picture(WIDTH, bottom + 22, "what the run did over time", *parts)


def legend(story: Story) -> str:
    """Return the legend of spans and moments, as HTML."""
    span_kinds = {span.kind for span in story.spans}
    spans = [
        (line([(1, 8), (15, 8)], f"span {kind}"), meaning)
        for kind, meaning in KINDS.items()
        if kind in span_kinds
    ]
    moment_kinds = {moment.kind for moment in story.moments}
    marks = [
        (_mark(kind, 8, 8), meaning) for kind, meaning in MARKS.items() if kind in moment_kinds
    ]
    return page.legend([*spans, *marks])


def time_unit(seconds: float) -> tuple[str, float]:
    """Return the best unit to show this time, and its length in seconds."""
    if seconds > 7200:
        return "h", 3600.0
    if seconds > 180:
        return "min", 60.0
    return "s", 1.0


def _order(lane: str) -> tuple[int, int]:
    name, _, number = lane.partition(" ")
    return ("job", "node", "rank").index(name), int(number or 0)


def _span(span: Span, begin: float, end: float, y: float) -> str:
    title = f"{span.title}: {format_duration(span.end - span.begin)}"
    return line([(begin, y), (max(end, begin + 1.0), y)], f"span {span.kind}", title)


def _moment(moment: Moment, x: float, y: float) -> str:
    return _mark(moment.kind, x, y, moment.title)


def _mark(kind: str, x: float, y: float, title: str = "") -> str:
    place = f"translate({plain(x)} {plain(y)})"
    return element(
        "path", *tooltip(title), d=_MOMENTS[kind], transform=place, class_=f"moment {kind}"
    )
