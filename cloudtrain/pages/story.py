"""The story of a run by its events: spans of time, moments and measurements. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field

from cloudtrain.pages.svg import Point
from cloudtrain.runs.state import RunState, SeenEvents
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
