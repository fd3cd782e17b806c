"""Story of a run in sentences, and its timeline as a picture."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field

from cloudtrain.pages import document as page
from cloudtrain.pages.svg import (
    WIDTH,
    Point,
    Scale,
    element,
    labels_of,
    line,
    picture,
    plain,
    text,
    tooltip,
)
from cloudtrain.runs.state import RunState, SeenEvents
from cloudtrain.units import format_duration
from cloudtrain_launcher import events
from cloudtrain_launcher.events import Event

JOB = "job"
"""Lane of events of the whole job."""
MAX_NODES = 8
"""Maximum nodes with a lane; more would fill the page."""
_KINDS = {"evaluating": "evaluating", "saving": "saving"}
"""Activities with a colour; all others prepare the training."""


@dataclass(frozen=True, slots=True)
class Span:
    """An interval of time."""

    lane: str
    """`job`, `node 0` or `rank 0`."""
    kind: str
    """waiting, preparing, training, evaluating, saving or stopping."""
    title: str
    """Text of the tooltip."""
    begin: float
    """Unix timestamp."""
    end: float


@dataclass(frozen=True, slots=True)
class Moment:
    """A point in time."""

    lane: str
    kind: str
    """checkpoint, restart or error."""
    title: str
    time: float


@dataclass(slots=True)
class Story:
    """A run over time. Times are Unix timestamps."""

    begin: float
    end: float
    """Now, if the run has not ended."""
    spans: list[Span] = field(default_factory=list)
    moments: list[Moment] = field(default_factory=list)
    metrics: dict[str, list[Point]] = field(default_factory=dict)
    """By name: (step, value), or (number of the report, value) without steps."""
    without_steps: set[str] = field(default_factory=set)
    """Names of metrics that were reported without a step."""
    throughput: list[Point] = field(default_factory=list)
    """(time, samples per second)."""
    busy: dict[str, list[Point]] = field(default_factory=dict)
    """By `GPU 0, node 0` or `rank 0`: (time, per cent of a GPU or of a core)."""
    gpus: bool = False
    """`busy` is about GPUs, not about cores."""


def story_of(all_events: Iterable[Event], state: RunState, time: float) -> Story:
    """Return the story of a run by all of its events, in order.

    `time`: now, the end of a run that has not ended.
    """
    teller = _Teller(Story(begin=state.created, end=state.ended or time))
    seen_events = SeenEvents()
    for event in all_events:
        if event.seq is None or seen_events.add(event.node, event.rank, event.seq):
            teller.take(event)
    return teller.finish(state)


class _Teller:
    """Builds a story, event by event. A span is open until the next one of its lane begins."""

    def __init__(self, story: Story) -> None:
        self.story = story
        self._open: dict[str, Span] = {}
        self._cores: dict[str, list[Point]] = {}
        self._gpus: dict[str, list[Point]] = {}

    def take(self, event: Event) -> None:
        if isinstance(event, events.Submitting):
            self._begin(JOB, "waiting", "submitting", event.time)
        elif isinstance(event, events.Submitted):
            self._begin(JOB, "waiting", "waiting for machines", event.time or self.story.begin)
        elif isinstance(event, events.Phase):
            self._begin(
                JOB,
                "preparing" if event.running else "waiting",
                event.phase,
                event.since or event.time,
            )
        elif isinstance(event, events.NodeStarted):
            self._begin_unless(JOB, "training", "preparing", "starting", event.time)
        elif isinstance(event, events.RankStarted):
            self._begin_unless(JOB, "training", "training", "training", event.time)
            self._end(_node(event.node), event.time)
        elif isinstance(event, events.Activity):
            self._activity(event)
        elif isinstance(event, events.StopRequested):
            self._begin(JOB, "stopping", "stopping", event.time)
        elif isinstance(event, events.NodeEnded):
            self._end(_node(event.node), event.time)
        else:
            self._moment(event)
            self._measure(event)

    def finish(self, state: RunState) -> Story:
        for lane in [*self._open]:
            self._end(lane, self.story.end)
        story = self.story
        story.gpus = bool(self._gpus)
        story.busy = self._gpus or self._cores
        if state.error is not None:
            story.moments.append(
                Moment(JOB, "error", state.error.message, state.error.time or story.end)
            )
        return story

    def _activity(self, event: events.Activity) -> None:
        if event.node >= MAX_NODES or event.rank > 0:
            return
        lane = "rank 0" if event.rank == 0 else _node(event.node)
        if event.activity:
            self._begin(lane, _KINDS.get(event.activity, "preparing"), event.activity, event.time)
        else:
            self._end(lane, event.time)

    def _moment(self, event: Event) -> None:
        if isinstance(event, events.Checkpoint) and event.step is not None:
            self._add("rank 0", "checkpoint", f"checkpoint of step {event.step:g}", event.time)
        elif isinstance(event, events.Restarted) and event.why != events.RESTART_ELSEWHERE:
            self._add(JOB, "restart", f"restart {event.attempt}: {event.why}", event.time)
        elif isinstance(event, events.Resumed) and event.step is not None:
            self._add(JOB, "restart", f"resumed from step {event.step:g}", event.time)

    def _add(self, lane: str, kind: str, title: str, time: float) -> None:
        if time:
            self.story.moments.append(Moment(lane, kind, title, time))

    def _measure(self, event: Event) -> None:
        if isinstance(event, events.Metrics):
            for name, value in event.values.items():
                points = self.story.metrics.setdefault(name, [])
                if event.step is None or not math.isfinite(event.step):
                    self.story.without_steps.add(name)
                    points.append((float(len(points) + 1), value))
                else:
                    points.append((event.step, value))
        elif isinstance(event, events.Progress) and event.samples_per_s is not None and event.time:
            self.story.throughput.append((event.time, event.samples_per_s))
        elif isinstance(event, events.Usage):
            self._usage(event)

    def _usage(self, event: events.Usage) -> None:
        node = f", node {event.node}"
        for gpu, value in (event.gpu_percent or {}).items():
            if math.isfinite(value):
                self._gpus.setdefault(f"GPU {gpu}{node}", []).append((event.time, value))
        for rank, value in (event.rank_cpu_percent or {}).items():
            if math.isfinite(value):
                self._cores.setdefault(f"rank {rank}", []).append((event.time, value))

    def _begin(self, lane: str, kind: str, title: str, time: float) -> None:
        self._end(lane, time)
        self._open[lane] = Span(lane, kind, title, time, time)

    def _begin_unless(self, lane: str, later_kind: str, kind: str, title: str, time: float) -> None:
        """Begin a span once, though each node and each rank reports its own start."""
        if lane not in self._open or self._open[lane].kind not in (later_kind, kind):
            self._begin(lane, kind, title, time)

    def _end(self, lane: str, time: float) -> None:
        span = self._open.pop(lane, None)
        if span is not None and time >= span.begin:
            self.story.spans.append(Span(lane, span.kind, span.title, span.begin, time))


def _node(node: int) -> str:
    return f"node {node}"


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
