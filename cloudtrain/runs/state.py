"""state = fold(events): what a run's events add up to. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from cloudtrain.runs.events import checked
from cloudtrain.runs.seen import Seen

ENDED = ("succeeded", "failed", "stopped")
"""The states that a run never leaves."""

STATES = ("submitting", "pending", "running", "stopping", *ENDED)

KEPT_POINTS = 500
"""Points of a learning curve that are kept, evenly spread over its length."""

MAX_WARNINGS = 20


@dataclass(slots=True)
class Curve:
    """One metric over time, thinned evenly as it grows; the first and the latest value are always there."""

    points: list[float] = field(default_factory=list)
    stride: int = 1
    count: int = 0
    latest: float = 0.0

    def add(self, value: float) -> None:
        """The next value."""
        if self.count % self.stride == 0:
            self.points.append(value)
        self.count, self.latest = self.count + 1, value
        if len(self.points) > KEPT_POINTS:
            del self.points[1::2]
            self.stride *= 2

    @property
    def values(self) -> list[float]:
        """What is kept, in order."""
        return self.points if (self.count - 1) % self.stride == 0 else [*self.points, self.latest]


@dataclass(kw_only=True, slots=True)
class RunState:
    """A run as its events tell it. Times are Unix timestamps, 0 when not yet known."""

    run_id: str
    state: str = "submitting"
    """submitting, pending, running, stopping, then one of succeeded, failed, stopped."""
    reason: str = ""
    """Why it ended, in words, when it did not simply succeed."""
    error: dict[str, Any] | None = None
    """The root cause: rank, node, exception, message, file, line, code, traceback."""
    name: str = ""
    provider: str = ""
    contract: str = ""
    nodes: int = 0
    processes: int = 0
    created: float = 0
    started: float = 0
    ended: float = 0
    ref: dict[str, Any] | None = field(default=None, repr=False)
    adopted: bool = False
    """Whether another machine started it."""
    owner: str = ""
    """Who did, as far as the cloud tells; empty for runs of this machine."""
    instance: str = ""
    """The type of machine it runs on, once the cloud has chosen it."""
    kept: dict[str, Any] = field(default_factory=dict)
    """Machines that are kept after the end, and billed: status, until, seconds."""
    image: str = ""
    """The address of the image that it runs in; empty where there is none, and for runs of an earlier version."""
    image_digest: str = ""
    """`sha256:…` of that image, where a registry has told."""
    stop_requested: float = 0
    phase: str = ""
    """What a cloud is doing with the job, in words: `launching machines`."""
    phase_since: float = 0
    phase_seen: float = 0
    """When we first saw it, by our own clock."""
    results: list[str] | None = None
    """What of model, output and checkpoints was there at the end; None when nobody has looked."""
    log_trouble: dict[str, Any] = field(default_factory=dict)
    """Why the job's log cannot be read: reason, hint, code, transient; empty while it can."""
    billing: dict[str, Any] = field(default_factory=dict)
    """What a cloud billed: billable_seconds, and usd where the price is known."""
    nodes_ended: dict[int, dict[str, Any]] = field(default_factory=dict, repr=False)
    """The last word of each node's launcher: outcome, error if it failed, why if it was stopped, whether by force."""
    restarts: int = 0
    ranks: set[int] = field(default_factory=set)
    """Ranks that have reported in."""
    progress: dict[str, Any] = field(default_factory=dict)
    metrics: dict[str, Any] = field(default_factory=dict)
    """The latest value of each metric."""
    curves: dict[str, Curve] = field(default_factory=dict, repr=False)
    """The course of each metric."""
    checkpoint: dict[str, Any] | None = None
    resumed: dict[str, Any] | None = None
    result: dict[str, Any] | None = None
    errors: list[dict[str, Any]] = field(default_factory=list, repr=False)
    warnings: list[str] = field(default_factory=list)
    """What is to be said at the end, whatever the end is; each once, though every node says it."""
    left: dict[int, tuple[int, float]] = field(default_factory=dict, repr=False)
    """Ranks that have ended with 0 since the last restart: their node, and when."""
    seen: Seen = field(default_factory=Seen, repr=False)

    @property
    def has_ended(self) -> bool:
        """Whether the run has reached a state that it never leaves."""
        return self.state in ENDED

    @property
    def keeps_machines(self) -> bool:
        """Whether machines may still be kept for it: until it is said that they are gone."""
        return self.kept.get("status") in ("InUse", "Available")

    @property
    def kept_until(self) -> float:
        """Until when machines are kept after its end; 0 when none are."""
        return float(self.kept.get("until") or 0) if self.has_ended and self.keeps_machines else 0.0

    @property
    def log_error(self) -> str:
        """`the log cannot be read: …`, why; empty while it can."""
        reason = self.log_trouble.get("reason", "")
        return f"the log cannot be read: {reason}" if reason else ""

    def seconds(self, now: float) -> float:
        """How long it has run, or ran."""
        begin = self.started or self.created
        return max(0.0, (self.ended or now) - begin) if begin else 0.0

    def to_json(self) -> dict[str, Any]:
        """Plain JSON, for `--json` and for scripts."""
        return {
            "run": self.run_id,
            "name": self.name,
            "state": self.state,
            "reason": self.reason,
            "error": self.error,
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
            "log_trouble": self.log_trouble.get("reason", ""),
            "billing": self.billing,
            "restarts": self.restarts,
            "ranks": len(self.ranks),
            "progress": self.progress,
            "metrics": self.metrics,
            "checkpoint": self.checkpoint,
            "resumed": self.resumed,
            "result": self.result,
            "warnings": self.warnings,
        }


def fold(run_id: str, events: Iterable[Mapping[str, Any]], state: RunState | None = None) -> RunState:
    """Apply events, in order, to a state (a new one by default). An event met twice counts once."""
    state = state or RunState(run_id=run_id)
    for told in events:
        event = checked(told)
        if event is None:
            continue  # any program may print an event line, and get it wrong
        try:
            who = event.get("node", -1), event.get("rank", -1)
            if "seq" in event and not state.seen.is_new(*who, event["seq"]):
                continue
            apply = _APPLY.get(event["type"])
            if apply is not None and _is_number(event.get("time", 0)):
                apply(state, event)
        except (KeyError, TypeError, ValueError):
            continue  # what this kind of event may lack, and does
    return state


def first_cause(
    errors: Iterable[Mapping[str, Any]], left: Mapping[int, tuple[int, float]] = MappingProxyType({})
) -> Mapping[str, Any] | None:
    """Of several nodes' own root causes the earliest that is no mere consequence of another.

    `left`: the ranks that ended with 0, their node and when. Where all that is known is that a peer was gone, the rank
    that had left while others still waited for it is the cause.
    """
    cause = min(errors, key=lambda error: (bool(error.get("consequence")), error["time"]), default=None)
    if cause is None or not cause.get("consequence") or cause["exception"] == "SIGTERM":
        return cause
    early = [(when, rank, node) for rank, (node, when) in left.items() if when <= cause["time"]]
    if not early:
        return cause
    when, rank, node = min(early)
    message = f"ended with exit code 0 while {who(cause)} still waited for it"
    return {"rank": rank, "node": node, "time": when, "exception": "exit", "message": message}


def who(error: Mapping[str, Any]) -> str:
    """`rank 3 (node 1)`, or `node 0` for what no rank did."""
    return f"rank {error['rank']} (node {error['node']})" if error["rank"] >= 0 else f"node {error['node']}"


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _submitting(state: RunState, event: Mapping[str, Any]) -> None:
    state.created = event["time"]
    state.name, state.provider, state.contract = event["name"], event["provider"], event["contract"]
    state.nodes, state.processes = event["nodes"], event["processes"]
    state.adopted = bool(event.get("adopted"))
    state.owner = str(event.get("owner") or ("another machine" if state.adopted else ""))


def _submitted(state: RunState, event: Mapping[str, Any]) -> None:
    state.ref = event["ref"]
    _advance(state, "pending")


def _image(state: RunState, event: Mapping[str, Any]) -> None:
    state.image, state.image_digest = event["address"], event.get("digest", "")


def _node_started(state: RunState, event: Mapping[str, Any]) -> None:
    state.started = state.started or event["time"]
    state.nodes_ended.pop(event["node"], None)
    _advance(state, "running")


def _node_ended(state: RunState, event: Mapping[str, Any]) -> None:
    told = {"outcome": event["outcome"], "error": event.get("error"), "why": event.get("why", "")}
    told["forced"] = event.get("forced") is True
    state.nodes_ended[event["node"]] = told


def _phase(state: RunState, event: Mapping[str, Any]) -> None:
    state.phase, state.phase_seen = event["phase"], event["time"]
    state.phase_since = event.get("since") or event["time"]
    state.instance = event.get("instance") or state.instance
    if event.get("running"):
        state.started = state.started or state.phase_since
        _advance(state, "running")


def _kept(state: RunState, event: Mapping[str, Any]) -> None:
    state.kept = {key: event[key] for key in ("status", "until", "seconds", "by") if key in event}
    state.billing = event.get("billing") or state.billing


def _log_unread(state: RunState, event: Mapping[str, Any]) -> None:
    fields = ("reason", "hint", "code", "transient")
    state.log_trouble = {key: event[key] for key in fields if key in event} if event["reason"] else {}


def _stop_requested(state: RunState, event: Mapping[str, Any]) -> None:
    state.stop_requested = state.stop_requested or event["time"]
    if not state.has_ended:
        state.state, state.reason = "stopping", event.get("reason", "")


def _ended(state: RunState, event: Mapping[str, Any]) -> None:
    if state.has_ended:
        return
    state.state, state.ended = event["state"], event["time"]
    state.reason = event.get("reason", "")
    state.billing = event.get("billing") or {}
    left = event.get("left")
    state.results = [str(name) for name in left] if isinstance(left, list) else None
    cause = event.get("error")
    if cause is not None:
        which = ("node", "rank", "time")
        same = (e for e in state.errors if all(e.get(key) == cause.get(key) for key in which))
        state.error = {**cause, "traceback": next((e.get("traceback", "") for e in same), "")}


def _rank_started(state: RunState, event: Mapping[str, Any]) -> None:
    state.ranks.add(event["rank"])


def _restarted(state: RunState, event: Mapping[str, Any]) -> None:
    if event["attempt"] > state.restarts:
        state.restarts = event["attempt"]
        state.left.clear()


def _rank_ended(state: RunState, event: Mapping[str, Any]) -> None:
    if event["exitcode"] == 0:
        state.left[event["rank"]] = (event.get("node", 0), event["time"])


def _warning(state: RunState, event: Mapping[str, Any]) -> None:
    if event["message"] not in state.warnings and len(state.warnings) < MAX_WARNINGS:
        state.warnings.append(event["message"])


def _metrics(state: RunState, event: Mapping[str, Any]) -> None:
    state.metrics |= event["values"]
    for name, value in event["values"].items():
        state.curves.setdefault(name, Curve()).add(value)


def _progress(state: RunState, event: Mapping[str, Any]) -> None:
    fields = ("epoch", "epochs", "step", "steps", "loss", "samples_per_s", "time")
    state.progress = {key: event[key] for key in fields if _is_number(event.get(key))}


def _advance(state: RunState, to: str) -> None:
    order = ("submitting", "pending", "running")
    if state.state in order and order.index(to) > order.index(state.state):
        state.state = to


def _keep(attribute: str, *fields: str, numbers: tuple[str, ...] = ("step",)) -> Any:
    """Keep the latest such event; one that lacks a number it lives by, or has a word there, is passed over."""

    def apply(state: RunState, event: Mapping[str, Any]) -> None:
        if not all(_is_number(event[key]) for key in numbers):
            return
        setattr(state, attribute, {key: event[key] for key in fields if event.get(key) is not None})

    return apply


_APPLY: dict[str, Any] = {
    "submitting": _submitting,
    "image": _image,
    "submitted": _submitted,
    "node_started": _node_started,
    "node_ended": _node_ended,
    "phase": _phase,
    "log_unread": _log_unread,
    "kept": _kept,
    "stop_requested": _stop_requested,
    "ended": _ended,
    "rank_started": _rank_started,
    "rank_ended": _rank_ended,
    "warning": _warning,
    "restarted": _restarted,
    "metrics": _metrics,
    "error": lambda state, event: state.errors.append(dict(event)),
    "progress": _progress,
    "checkpoint": _keep("checkpoint", "step", "path", "seconds", "time"),
    "resumed": _keep("resumed", "step", "epoch"),
    "result": _keep("result", "outcome", "step", "parameters_sha256", "time", numbers=()),
}
