"""State of a run, computed by `cloudtrain.runs.fold`."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from dataclasses import dataclass, field
from typing import Any

from cloudtrain.runs.laps import Laps
from cloudtrain.runs.series import Series
from cloudtrain.runs.state_names import ENDED
from cloudtrain.runs.step_times import StepTimesHistory, Utilization
from cloudtrain_wire.causes import one_line
from cloudtrain_wire.events import (
    Activity,
    Billing,
    Cause,
    Checkpoint,
    Error,
    Event,
    Kept,
    LogUnread,
    Metrics,
    NodeEnded,
    Progress,
    Result,
    Resumed,
    Schedule,
    Usage,
)

KEPT_POINTS = 500
"""Maximum number of points of a curve, evenly spread over its length."""

_MAX_SEQ = 1 << 63

_PROGRESS_FIELDS = ("epoch", "epochs", "step", "steps", "loss", "samples_per_s", "time")


@dataclass(slots=True)
class Curve:
    """Metric over time, thinned evenly as it grows, with the first and the last value."""

    points: list[float] = field(default_factory=list)
    stride: int = 1
    count: int = 0
    latest: float = 0.0

    def add(self, value: float) -> None:
        """Add a value."""
        if self.count % self.stride == 0:
            self.points.append(value)

        self.count += 1
        self.latest = value

        if len(self.points) > KEPT_POINTS:
            del self.points[1::2]
            self.stride *= 2

    @property
    def values(self) -> list[float]:
        """Points in order."""
        if (self.count - 1) % self.stride == 0:
            return self.points

        return [*self.points, self.latest]


@dataclass(slots=True)
class SeenEvents:
    """Set of applied events by (node, rank, seq), in eight bytes each: a long run has millions."""

    _sequences: dict[tuple[int, int], array[int]] = field(default_factory=dict)
    """Sorted sequence numbers by node and rank. New events mostly come last."""

    def add(self, node: int, rank: int, seq: int) -> bool:
        """Add an event. Return whether it is new."""
        if not -_MAX_SEQ <= seq < _MAX_SEQ:
            return True  # no clock gives such a number, and an array cannot hold it

        sequence = self._sequences.setdefault((node, rank), array("q"))
        if not sequence or seq > sequence[-1]:
            at = len(sequence)
        else:
            at = bisect_left(sequence, seq)

        if at < len(sequence) and sequence[at] == seq:
            return False

        sequence.insert(at, seq)
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
    arguments: dict[str, Any] = field(default_factory=dict, repr=False)
    """Arguments of the program by name; empty for runs of other machines and earlier versions."""
    tags: dict[str, str] = field(default_factory=dict, repr=False)
    """Tags of the job."""
    created: float = 0
    started: float = 0
    ended: float = 0
    ref: dict[str, Any] | None = field(default=None, repr=False)
    """Provider's reference to the job; None before the start."""
    requested: float = 0
    """Time of the last request that creates a job; 0: not sent."""
    adopted: bool = False
    """True if another machine started it."""
    owner: str = ""
    """Owner according to the cloud; empty for runs of this machine."""
    instance: str = ""
    """Machine type that the cloud chose."""
    attempts: list[str] = field(default_factory=list)
    """ARNs of the jobs that a queue has started for it, the last one at the end."""
    kept: Kept | None = None
    """Machines that stay after the end and are billed."""
    image: str = ""
    """Address of its image; empty without one and for runs of earlier versions."""
    image_digest: str = ""
    """`sha256:…` of that image, if a registry has returned it."""
    stop_requested: float = 0
    phase: str = ""
    """Phase of the cloud's job for people: `launching machines`."""
    phase_since: float = 0
    phase_seen: float = 0
    """Time of the first observation by this machine's clock."""
    results: list[str] | None = None
    """Existing results at the end among model, output and checkpoints; None if not checked."""
    log_unread: LogUnread | None = None
    """Error of reading the job's log; None if it is readable."""
    billing: Billing | None = None
    """Billing by the cloud: billable_seconds, and usd if the price is known."""
    nodes_ended: dict[int, NodeEnded] = field(default_factory=dict, repr=False)
    """End of each node, reported by its launcher."""
    restarts: int = 0
    ranks: set[int] = field(default_factory=set)
    """Ranks that have reported in."""
    progress: Progress | None = None
    activities: dict[tuple[int, int], Activity] = field(default_factory=dict, repr=False)
    """Activities besides training of launchers (rank -1) and the first rank, by node and rank."""
    reported: Metrics | None = field(default=None, repr=False)
    """Last report of metrics."""
    laps: Laps = field(default_factory=Laps, repr=False)
    """Training speed, the base of the remaining time."""
    schedule: Schedule | None = None
    """Frequency of evaluations and checkpoints, if the program announced it."""
    waited: float = 0.0
    """Seconds of waiting for machines after the start, which are not billed."""
    waiting_since: float = 0.0
    """Time since it stopped running after its start; 0: it runs. A wait only if it runs again."""
    metrics: dict[str, float] = field(default_factory=dict)
    """Last value of each metric."""
    series: dict[str, Series] = field(default_factory=dict, repr=False)
    """First, last, lowest, highest and best value of each metric."""
    curves: dict[str, Curve] = field(default_factory=dict, repr=False)
    """Curve of each metric."""
    progress_curves: dict[str, Curve] = field(default_factory=dict, repr=False)
    """Curves of the running loss (`loss`) and of the throughput (`samples/s`)."""
    usage: dict[int, Usage] = field(default_factory=dict, repr=False)
    """Last measured resource usage of each node."""
    utilization: Utilization = field(default_factory=Utilization, repr=False)
    """Mean utilization of GPUs and ranks."""
    step_times: StepTimesHistory = field(default_factory=StepTimesHistory, repr=False)
    """Time of each rank by phase."""
    checkpoint: Checkpoint | None = None
    """Last checkpoint with a step."""
    resumed: Resumed | None = None
    """Last checkpoint that training resumed from; it has a step."""
    result: Result | None = None
    trial_outcome: str = ""
    """Outcome of a trial that ended itself: `pruned` or `paused`; else empty.

    `pruned` at a rung, `paused` until its promotion; `measured` in runs of earlier versions.
    """
    errors: list[Error] = field(default_factory=list, repr=False)
    warnings: list[str] = field(default_factory=list)
    """Warnings to show at the end, without repetitions by other nodes."""
    finished_ranks: dict[int, tuple[int, float]] = field(default_factory=dict, repr=False)
    """Ranks that ended with 0 since the last restart: node and time."""
    seen: SeenEvents = field(default_factory=SeenEvents, repr=False)

    @property
    def activity(self) -> Activity | None:
        """Current activity besides training: the first rank's, else the oldest of a launcher."""
        doing = self.activities.values()
        return min(doing, key=lambda activity: (activity.rank != 0, activity.time), default=None)

    @property
    def position(self) -> Progress:
        """Training position by reported progress, else by metrics."""
        latest = self.progress or Progress()
        if self.reported is not None and (self.reported.step or -1) > (latest.step or -1):
            latest = latest.replace(step=self.reported.step)
            if self.reported.epoch is not None and latest.epoch is None:
                latest = latest.replace(epoch=self.reported.epoch)

        return latest

    def eta_seconds(self, now: float) -> float | None:
        """Return the remaining seconds at the current pace, or None without a number of steps."""
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
        """True if it ended as not started after its request was sent; its job may exist."""
        return self.has_ended and self.ref is None and self.requested > 0

    @property
    def keeps_machines(self) -> bool:
        """True until an event says that the kept machines are gone."""
        return self.kept is not None and self.kept.status in ("InUse", "Available")

    @property
    def kept_until(self) -> float:
        """Time until which machines are kept after the end; 0 for none."""
        if self.kept and self.has_ended and self.keeps_machines:
            return float(self.kept.until)

        return 0.0

    @property
    def log_error(self) -> str:
        """Text `the log cannot be read: …` with the reason; empty if it is readable."""
        if not self.log_unread:
            return ""

        return f"the log cannot be read: {self.log_unread.reason}"

    def seconds(self, now: float) -> float:
        """Return the seconds of its run up to `now`, a Unix timestamp, or its end."""
        begin = self.started or self.created
        if not begin:
            return 0.0

        return max(0.0, (self.ended or now) - begin)

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON for `--json` and scripts."""
        document: dict[str, Any] = {
            "run": self.run_id,
            "name": self.name,
            "state": self.state,
            "reason": self.reason,
            "error": None,
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
            "log_trouble": "",
            "billing": {},
            "restarts": self.restarts,
            "ranks": len(self.ranks),
            "activity": "",
            "progress": _fields(self.progress, *_PROGRESS_FIELDS) or {},
            "metrics": self.metrics,
            "checkpoint": _fields(self.checkpoint, "step", "path", "seconds", "time"),
            "resumed": _fields(self.resumed, "step", "epoch"),
            "result": _fields(self.result, "outcome", "step", "parameters_sha256", "time"),
            "trial_outcome": self.trial_outcome,
            "warnings": self.warnings,
        }
        if self.error:
            document["error"] = self.error.to_json()
        if self.log_unread:
            document["log_trouble"] = self.log_unread.reason
        if self.billing:
            document["billing"] = self.billing.to_json()
        if self.activity and not self.has_ended:
            document["activity"] = self.activity.activity

        return document


def _fields(event: Event | None, *names: str) -> dict[str, Any] | None:
    """Return these fields of an event, without missing ones."""
    if event is None:
        return None
    fields = event.fields()
    return {name: fields[name] for name in names if fields.get(name) is not None}


def explain(state: RunState) -> str:
    """Return why a run ended, in one line: the first failing rank and its error. "" on success."""
    if not state.error:
        return state.reason

    return one_line(state.error)
