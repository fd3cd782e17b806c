"""State of a run, computed by `cloudtrain.runs.fold`."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from dataclasses import dataclass, field
from typing import Any

from cloudtrain.runs.laps import Laps
from cloudtrain.runs.step_times import StepTimesHistory
from cloudtrain.runs.utilization import Utilization
from cloudtrain_launcher.events import (
    Activity,
    Billing,
    Cause,
    Checkpoint,
    Error,
    Event,
    Kept,
    LimitTooLow,
    LogUnread,
    Metrics,
    NodeEnded,
    Profile,
    Progress,
    Result,
    Resumed,
    Schedule,
    Usage,
)

ENDED = ("succeeded", "failed", "stopped")
"""The states that a run never leaves, unless it counts as not started and its job is found after
all.
"""

STATES = ("submitting", "pending", "running", "stopping", *ENDED)

KEPT_POINTS = 500
"""Points of a learning curve that are kept, evenly spread over its length."""


@dataclass(slots=True)
class Curve:
    """One metric over time, thinned evenly as it grows; the first and the latest value are always
    there.
    """

    points: list[float] = field(default_factory=list)
    stride: int = 1
    count: int = 0
    latest: float = 0.0

    def add(self, value: float) -> None:
        """Add a value."""
        if self.count % self.stride == 0:
            self.points.append(value)
        self.count = self.count + 1
        self.latest = value
        if len(self.points) > KEPT_POINTS:
            del self.points[1::2]
            self.stride *= 2

    @property
    def values(self) -> list[float]:
        """What is kept, in order."""
        return self.points if (self.count - 1) % self.stride == 0 else [*self.points, self.latest]


_MAX_SEQ = 1 << 63


@dataclass(slots=True)
class SeenEvents:
    """The (node, rank, seq) of events that were applied, in eight bytes for each: a long run has
    millions.
    """

    _sequences: dict[tuple[int, int], array[int]] = field(default_factory=dict)
    """By node and rank, sorted; seq grows from event to event of a rank, so that most come at the
    end.
    """

    def add(self, node: int, rank: int, seq: int) -> bool:
        """Remember an event; whether it is new."""
        if not -_MAX_SEQ <= seq < _MAX_SEQ:
            return True  # no clock gives such a number, and an array cannot hold it
        known = self._sequences.setdefault((node, rank), array("q"))
        at = len(known) if not known or seq > known[-1] else bisect_left(known, seq)
        if at < len(known) and known[at] == seq:
            return False
        known.insert(at, seq)
        return True


@dataclass(kw_only=True, slots=True)
class RunState:
    """State of a run by its events. Times are Unix timestamps, 0 if unknown."""

    run_id: str
    state: str = "submitting"
    """submitting, pending, running, stopping, then one of succeeded, failed, stopped."""
    reason: str = ""
    """Reason for the end, unless it just succeeded."""
    error: Cause | None = None
    """Root cause of a failure, if a node reported it."""
    name: str = ""
    provider: str = ""
    contract: str = ""
    nodes: int = 0
    processes: int = 0
    created: float = 0
    started: float = 0
    ended: float = 0
    ref: dict[str, Any] | None = field(default=None, repr=False)
    """Provider's reference to the job; None before the start."""
    requested: float = 0
    """When the latest request that creates a job was sent to a cloud; 0: none was."""
    adopted: bool = False
    """True if another machine started it."""
    owner: str = ""
    """Who did, if the cloud says it; empty for runs of this machine."""
    instance: str = ""
    """The type of machine it runs on, once the cloud has chosen it."""
    kept: Kept | None = None
    """Machines that are kept after the end, and billed."""
    image: str = ""
    """The address of the image that it runs in; empty where there is none, and for runs of an
    earlier version.
    """
    image_digest: str = ""
    """`sha256:…` of that image, if a registry has returned it."""
    stop_requested: float = 0
    phase: str = ""
    """What a cloud is doing with the job, for people: `launching machines`."""
    phase_since: float = 0
    phase_seen: float = 0
    """When we first saw it, by this machine's clock."""
    results: list[str] | None = None
    """Which of model, output and checkpoints existed at the end; None when that was not checked."""
    log_unread: LogUnread | None = None
    """Why the job's log cannot be read; None while it can."""
    billing: Billing | None = None
    """What a cloud billed: billable_seconds, and usd where the price is known."""
    nodes_ended: dict[int, NodeEnded] = field(default_factory=dict, repr=False)
    """How each node's launcher says that it has ended, by node."""
    restarts: int = 0
    ranks: set[int] = field(default_factory=set)
    """Ranks that have reported in."""
    progress: Progress | None = None
    activities: dict[tuple[int, int], Activity] = field(default_factory=dict, repr=False)
    """What launchers (rank -1) and the first rank are doing besides training, by node and rank."""
    reported: Metrics | None = field(default=None, repr=False)
    """The latest metrics that were reported."""
    laps: Laps = field(default_factory=Laps, repr=False)
    """How fast it trains, from which a forecast is made."""
    schedule: Schedule | None = None
    """How often training evaluates and saves, where the program has said it."""
    waited: float = 0.0
    """Seconds in which it waited for machines again after its start: nothing is billed for them."""
    waiting_since: float = 0.0
    """Since when it has not been running, though it had started; 0: it runs. Only if it runs again
    was it a wait.
    """
    metrics: dict[str, float] = field(default_factory=dict)
    """The latest value of each metric."""
    curves: dict[str, Curve] = field(default_factory=dict, repr=False)
    """The course of each metric."""
    progress_curves: dict[str, Curve] = field(default_factory=dict, repr=False)
    """The course of the running loss (`loss`) and of the throughput (`samples/s`)."""
    usage: dict[int, Usage] = field(default_factory=dict, repr=False)
    """What each node uses, as last measured."""
    utilization: Utilization = field(default_factory=Utilization, repr=False)
    """How busy GPUs and ranks were, on average."""
    step_times: StepTimesHistory = field(default_factory=StepTimesHistory, repr=False)
    """Where the time of each rank went."""
    checkpoint: Checkpoint | None = None
    """The latest one; it has a step."""
    resumed: Resumed | None = None
    """The checkpoint that training has gone on from, the latest time that it did; it has a step."""
    profile: Profile | None = None
    """The latest steps that were profiled."""
    result: Result | None = None
    trial_outcome: str = ""
    """How a trial of a sweep has ended itself: `pruned` at a rung, `paused` to wait for its
    promotion, `measured` in a search for a batch size; else empty.
    """
    errors: list[Error] = field(default_factory=list, repr=False)
    warnings: list[str] = field(default_factory=list)
    """Warnings to show at the end; each once, though every node reports it."""
    limit_too_low: LimitTooLow | None = None
    """The one that says that a limit is going to end it early."""
    finished_ranks: dict[int, tuple[int, float]] = field(default_factory=dict, repr=False)
    """Ranks that have ended with 0 since the last restart: their node, and when."""
    seen: SeenEvents = field(default_factory=SeenEvents, repr=False)

    @property
    def lasting_warnings(self) -> list[str]:
        """The warnings, after its end without the one that says how to have it end."""
        too_low = self.limit_too_low
        return [
            text
            for text in self.warnings
            if not (self.has_ended and too_low and text == too_low.message)
        ]

    @property
    def activity(self) -> Activity | None:
        """What the run is doing besides training: the first rank's activity, else the first that a
        launcher began.
        """
        doing = self.activities.values()
        return min(doing, key=lambda activity: (activity.rank != 0, activity.time), default=None)

    @property
    def position(self) -> Progress:
        """How far training has got: as the program has reported its progress, or else its metrics."""
        latest = self.progress or Progress()
        if self.reported is not None and (self.reported.step or -1) > (latest.step or -1):
            latest = latest.replace(step=self.reported.step)
            if self.reported.epoch is not None and latest.epoch is None:
                latest = latest.replace(epoch=self.reported.epoch)
        return latest

    def eta_seconds(self, now: float) -> float | None:
        """How long the rest takes at the present pace, in seconds; None where the number of steps
        is not known.
        """
        at = self.position
        if at.steps is None or at.step is None or self.has_ended:
            return None
        per_step = self.laps.seconds_per_step or at.seconds_per_step
        if not per_step:
            return None
        return max(0.0, (at.steps - at.step) * per_step - max(0.0, now - self.laps.time))

    @property
    def has_ended(self) -> bool:
        """True if the run is in a final state."""
        return self.state in ENDED

    @property
    def may_have_started(self) -> bool:
        """Whether it ended as not started although its request was sent: the cloud knows better."""
        return self.has_ended and self.ref is None and self.requested > 0

    @property
    def keeps_machines(self) -> bool:
        """Whether machines may still be kept for it: until an event says that they are gone."""
        return self.kept is not None and self.kept.status in ("InUse", "Available")

    @property
    def kept_until(self) -> float:
        """Until when machines are kept after its end; 0 when none are."""
        return (
            float(self.kept.until) if self.kept and self.has_ended and self.keeps_machines else 0.0
        )

    @property
    def log_error(self) -> str:
        """`the log cannot be read: …`, why; empty while it can."""
        return f"the log cannot be read: {self.log_unread.reason}" if self.log_unread else ""

    def seconds(self, now: float) -> float:
        """How long it has run, or ran, in seconds. `now`: a Unix timestamp."""
        begin = self.started or self.created
        return max(0.0, (self.ended or now) - begin) if begin else 0.0

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON for `--json` and scripts."""
        return {
            "run": self.run_id,
            "name": self.name,
            "state": self.state,
            "reason": self.reason,
            "error": self.error.to_json() if self.error else None,
            "provider": self.provider,
            "contract": self.contract,
            "nodes": self.nodes,
            "processes": self.processes,
            "created": self.created,
            "started": self.started or None,
            "ended": self.ended or None,
            "owner": self.owner,
            "submitted": self.ref is not None,
            "instance": self.instance,
            "image": self.image,
            "image_digest": self.image_digest,
            "kept_until": self.kept_until or None,
            "phase": self.phase,
            "log_trouble": self.log_unread.reason if self.log_unread else "",
            "billing": self.billing.to_json() if self.billing else {},
            "restarts": self.restarts,
            "ranks": len(self.ranks),
            "activity": self.activity.activity if self.activity and not self.has_ended else "",
            "progress": _fields(self.progress, *_PROGRESS_FIELDS) or {},
            "metrics": self.metrics,
            "checkpoint": _fields(self.checkpoint, "step", "path", "seconds", "time"),
            "resumed": _fields(self.resumed, "step", "epoch"),
            "profile": _fields(self.profile, "first_step", "last_step", "path"),
            "result": _fields(self.result, "outcome", "step", "parameters_sha256", "time"),
            "trial_outcome": self.trial_outcome,
            "warnings": self.warnings,
        }


_PROGRESS_FIELDS = ("epoch", "epochs", "step", "steps", "loss", "samples_per_s", "time")


def _fields(event: Event | None, *names: str) -> dict[str, Any] | None:
    """These fields of an event, those that it has, in this order."""
    if event is None:
        return None
    known = event.fields()
    return {name: known[name] for name in names if known.get(name) is not None}
