"""Looking at a job: one look at its run history, then the new log lines, and from both the events that are new."""

from __future__ import annotations

import time
from collections.abc import Generator, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from cloudtrain.providers.azure.config import config_of, request_of
from cloudtrain.providers.azure.logs import new_lines
from cloudtrain.providers.azure.phases import billing, ended_at, ending, phase_event, phase_of, started_at, status_of
from cloudtrain.providers.azure.results import left, places
from cloudtrain.providers.azure.submit import gone, reconcile
from cloudtrain.providers.cloud.log_attempt import LogAttempt, backfill
from cloudtrain.providers.cloud.outcome import all_nodes_reported, cut_short, ended_event
from cloudtrain.runs.folder import RunFolder
from cloudtrain.runs.observation import Event, LogPart, Observation, Positions
from cloudtrain.runs.state import RunState

if TYPE_CHECKING:
    from cloudtrain.providers.azure.client import Workspace

SETTLING_PAUSES = 3
"""Logs lag: after the end of a job its last lines are waited for, for this many looks."""


def observe(cloud: Workspace, run: RunFolder, state: RunState, pause: float) -> Iterator[Observation]:
    """What is new since the last look. `state` is kept up to date with what has been observed so far."""
    now = time.time()
    if state.ref is None:
        yield Observation(events=reconcile(cloud, run, now))
    if state.ref is None:
        return
    details = cloud.details(run.run_id)
    if details is None:
        raise gone(cloud, run.run_id)
    yield Observation(events=list(_progress(details, state, now)))
    over = ending(details)
    log = LogAttempt(lambda positions: new_lines(cloud, logs_of(details), positions, whole=over is not None))
    yield from log.observations(state)
    if over is not None:  # what has just been read may hold the nodes' last words
        waited = _waited(details, state, now, pause)
        if log.is_done(waited=waited, all_reported=all_nodes_reported(state, state.nodes)):
            end = _ended(details, state, over, run)
            rest = left(cloud, run.run_id, places(request_of(run)))
            yield Observation(events=[{**end, "left": rest}])


def _progress(details: Mapping[str, Any], state: RunState, now: float) -> Iterator[Event]:
    """How far it is, where that has changed."""
    if phase_of(details) != state.phase:
        yield phase_event(details, now)
    if status_of(details) == "CancelRequested" and not state.stop_requested:
        yield {"type": "stop_requested", "time": now, "reason": "Azure ML is cancelling it"}


def backfill_logs(cloud: Workspace, run: RunFolder, state: RunState) -> Iterator[Observation]:
    """All log lines of a job that is over."""

    def read(positions: Positions) -> Generator[LogPart, None, bool]:
        logs = logs_of(cloud.details(run.run_id) or {})
        return (yield from new_lines(cloud, logs, positions, whole=True))

    return backfill(read, state)


def logs_of(details: Mapping[str, Any]) -> Mapping[str, str]:
    """The addresses of a job's logs by their names."""
    return details.get("logFiles") or {}


def _waited(details: Mapping[str, Any], state: RunState, now: float, pause: float) -> bool:
    """Whether the last lines had their time to arrive: since the end, or since we first saw it, as clocks differ."""
    if not started_at(details) and not logs_of(details):
        return True  # it never came so far as to print anything
    seen = state.phase_seen if state.phase == phase_of(details) else now
    return now - min(seen, ended_at(details) or now) > SETTLING_PAUSES * pause


def _ended(details: Mapping[str, Any], state: RunState, over: tuple[str, str], run: RunFolder) -> dict[str, Any]:
    """The end by Azure ML's word, unless the nodes know better: a stop of ours ends with checkpoints, not by force."""
    final, reason = over
    whole = all_nodes_reported(state, state.nodes)
    outcomes = {node.outcome for node in state.nodes_ended.values()}
    causes = {node.why for node in state.nodes_ended.values() if node.outcome == "stopped"}
    # An eviction ends them too: only a stop by us, or by themselves, is none of Azure ML's failures.
    by_us = bool(state.stop_requested) or bool(causes & {"time", "stop_file"})
    if whole and outcomes == {"succeeded"}:
        final, reason = "succeeded", ""  # done, when it was cancelled
    elif final == "succeeded" and "stopped" in outcomes:
        final, reason = "stopped", ""  # it ended in order, and before its time
    elif final != "stopped" and by_us and "stopped" in outcomes and outcomes <= {"stopped", "succeeded"}:
        final, reason = "stopped", ""
    taken = _taken_away(state)
    if final == "stopped":
        late = "the time limit is over (limits.max_runtime, or what limits.max_cost pays for)"
        reason = late if "time" in causes else reason or state.reason or taken or "it was cancelled"
        reason += cut_short(state, "azure.stop_grace gives more") if "saved" not in reason else ""
    elif final == "failed" and taken:
        reason = f"{taken}: {reason}" if reason else taken
    return ended_event(state, (final, reason), ended_at(details) or time.time(), _bill(details, state, run))


def _taken_away(state: RunState) -> str:
    """Which node its platform has told to end, if it did; empty: none."""
    for node, told in sorted(state.nodes_ended.items()):
        if told.outcome == "stopped" and told.why in ("sigterm", "preempted"):
            how = "its machine was taken away" if told.why == "preempted" else "its platform ended it (SIGTERM)"
            return f"node {node} stopped before it was done: {how}"
    return ""


def _bill(details: Mapping[str, Any], state: RunState, run: RunFolder) -> dict[str, Any]:
    return billing(details, state.nodes, max(config_of(run).prices.values(), default=None))
