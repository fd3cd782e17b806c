"""State of a run, computed from its events. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from cloudtrain.runs.series import Series
from cloudtrain.runs.state import Curve, RunState
from cloudtrain_wire import events
from cloudtrain_wire.events import Event

MAX_WARNINGS = 20


def fold(run_id: str, new_events: Iterable[Event], state: RunState | None = None) -> RunState:
    """Apply events in order to a state, in place (default: a new one), and return it.

    An event that was read twice counts once: (node, rank, seq) identifies it.
    """
    state = state or RunState(run_id=run_id)
    for event in new_events:
        if event.seq is not None and not state.seen.add(event.node, event.rank, event.seq):
            continue

        apply = _APPLY.get(type(event))
        if apply is not None:
            apply(state, event)

    return state


def _submitting(state: RunState, event: events.Submitting) -> None:
    state.created = event.time
    state.name = event.name
    state.provider = event.provider
    state.contract = event.contract
    state.nodes = event.nodes
    state.processes = event.processes
    state.adopted = event.adopted
    state.arguments = event.arguments or {}
    state.tags = event.tags or {}
    state.owner = event.owner or ("another machine" if event.adopted else "")


def _image(state: RunState, event: events.Image) -> None:
    state.image = event.address
    state.image_digest = event.digest


def _creating(state: RunState, event: events.Creating) -> None:
    state.requested = event.time


def _submitted(state: RunState, event: events.Submitted) -> None:
    if state.may_have_started:  # its job was found after all
        state.state = "submitting"
        state.reason = ""
        state.ended = 0
        state.results = None

    state.ref = event.ref
    _advance(state, "pending")


def _phase(state: RunState, event: events.Phase) -> None:
    state.phase = event.phase
    state.phase_seen = event.time
    state.phase_since = event.since or event.time
    state.instance = event.instance or state.instance
    if event.attempt and event.attempt not in state.attempts:
        state.attempts.append(event.attempt)

    if event.running:
        state.started = min(state.started or state.phase_since, state.phase_since)
        _advance(state, "running")
        _end_wait(state, state.phase_since)
    elif state.started and state.phase_since > state.started:
        state.waiting_since = state.waiting_since or state.phase_since


def _node_started(state: RunState, event: events.NodeStarted) -> None:
    state.started = state.started or event.time
    state.nodes_ended.pop(event.node, None)
    _advance(state, "running")
    _end_wait(state, event.time)


def _node_ended(state: RunState, event: events.NodeEnded) -> None:
    state.nodes_ended[event.node] = event
    for key in [key for key in state.activities if key[0] == event.node]:
        del state.activities[key]


def _rank_started(state: RunState, event: events.RankStarted) -> None:
    state.ranks.add(event.rank)
    state.activities.pop((event.node, -1), None)  # the launcher's work before the start is done


def _rank_ended(state: RunState, event: events.RankEnded) -> None:
    if event.exitcode == 0:
        state.finished_ranks[event.rank] = (event.node, event.time)


def _restarted(state: RunState, event: events.Restarted) -> None:
    if event.attempt > state.restarts:
        state.restarts = event.attempt
        state.finished_ranks.clear()
        state.activities.clear()
        state.laps.restart()


def _error(state: RunState, event: events.Error) -> None:
    state.errors.append(event)


def _warned(state: RunState, event: events.Warned) -> None:
    if event.message not in state.warnings and len(state.warnings) < MAX_WARNINGS:
        state.warnings.append(event.message)


def _metrics(state: RunState, event: events.Metrics) -> None:
    state.metrics |= event.values
    state.reported = event

    if state.progress is None:  # progress counts the steps
        state.laps.reported(event.time, event.step)

    for name, value in event.values.items():
        state.curves.setdefault(name, Curve()).add(value)
        if name in state.series:
            state.series[name].add(value, event.step)
        else:
            state.series[name] = Series.begin(name, value, event.step)


def _progress(state: RunState, event: events.Progress) -> None:
    # Metrics may have counted something else.
    if state.progress is None and not state.laps.leads_to(event.step):
        state.laps = state.laps.forgotten()

    state.progress = event
    for name, value in (("loss", event.loss), ("samples/s", event.samples_per_s)):
        if value is not None:
            state.progress_curves.setdefault(name, Curve()).add(value)

    state.laps.reported(event.time, event.step)


def _schedule(state: RunState, event: events.Schedule) -> None:
    state.schedule = event


def _activity(state: RunState, event: events.Activity) -> None:
    key = (event.node, event.rank)
    if event.rank == 0:
        state.laps.pausing(event.time, event.activity)
    if not event.activity:
        state.activities.pop(key, None)
    elif event.rank <= 0:  # of the ranks, the first one speaks for all
        state.activities[key] = event


def _checkpoint(state: RunState, event: events.Checkpoint) -> None:
    if event.step is not None:
        state.checkpoint = event


def _usage(state: RunState, event: events.Usage) -> None:
    state.usage[event.node] = event
    state.utilization.add(event)


def _step_times(state: RunState, event: events.StepTimes) -> None:
    state.step_times.add(event)


def _resumed(state: RunState, event: events.Resumed) -> None:
    if event.step is not None:
        state.resumed = event
        state.laps.restart(event.step)


def _result(state: RunState, event: events.Result) -> None:
    state.result = event


def _rung_reached(state: RunState, event: events.RungReached) -> None:
    state.trial_outcome = "" if event.outcome == "goes_on" else event.outcome


def _log_unread(state: RunState, event: events.LogUnread) -> None:
    state.log_unread = event if event.reason else None


def _machines_kept(state: RunState, event: events.Kept) -> None:
    state.kept = event
    state.billing = event.billing or state.billing


def _stop_requested(state: RunState, event: events.StopRequested) -> None:
    state.stop_requested = state.stop_requested or event.time
    if not state.has_ended:
        state.state = "stopping"
        state.reason = event.reason


def _ended(state: RunState, event: events.Ended) -> None:
    if state.has_ended:  # the first end counts
        return

    state.state = event.state
    state.ended = event.time
    state.reason = event.reason
    state.billing = event.billing
    state.results = event.left
    cause = event.error

    if cause is not None:  # its traceback is in the event of the error itself
        where = (cause.node, cause.rank, cause.time)
        matching = (
            error for error in state.errors if (error.node, error.rank, error.time) == where
        )
        state.error = cause.replace(traceback=next((error.traceback for error in matching), ""))


def _end_wait(state: RunState, time: float) -> None:
    if state.waiting_since:
        state.waited += max(0.0, time - state.waiting_since)
        state.waiting_since = 0.0


def _advance(state: RunState, to: str) -> None:
    order = ("submitting", "pending", "running")
    if state.state in order and order.index(to) > order.index(state.state):
        state.state = to


_APPLY: dict[type[Event], Callable[[RunState, Any], None]] = {
    events.Submitting: _submitting,
    events.Image: _image,
    events.Creating: _creating,
    events.Submitted: _submitted,
    events.Phase: _phase,
    events.NodeStarted: _node_started,
    events.NodeEnded: _node_ended,
    events.RankStarted: _rank_started,
    events.RankEnded: _rank_ended,
    events.Restarted: _restarted,
    events.Error: _error,
    events.Warned: _warned,
    events.Metrics: _metrics,
    events.Progress: _progress,
    events.Schedule: _schedule,
    events.Activity: _activity,
    events.Usage: _usage,
    events.StepTimes: _step_times,
    events.Checkpoint: _checkpoint,
    events.Resumed: _resumed,
    events.Result: _result,
    events.RungReached: _rung_reached,
    events.LogUnread: _log_unread,
    events.Kept: _machines_kept,
    events.StopRequested: _stop_requested,
    events.Ended: _ended,
}
