"""Observe a job: its phase, its new log lines, and its end, as its nodes report it."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from cloudtrain.providers.azure.config import client_of_run, config_of, request_of
from cloudtrain.providers.azure.logs import logs_of, new_lines
from cloudtrain.providers.azure.phases import (
    PHASES,
    billing,
    ended_at,
    final_state,
    phase_event,
    phase_of,
    started_at,
    status_of,
)
from cloudtrain.providers.azure.results import artifact_uris, existing_artifacts
from cloudtrain.providers.azure.submit import job_not_found, reconcile
from cloudtrain.providers.shared.idempotent_create import is_new
from cloudtrain.providers.shared.log_attempt import (
    TIME_IS_UP,
    FinalState,
    LogAttempt,
    all_nodes_reported,
    ended_event,
    incomplete_shutdown,
    log_lag_is_over,
)
from cloudtrain.runs.logs import Observation
from cloudtrain_wire.events import Ended, Event, Phase, StopRequested

if TYPE_CHECKING:
    from cloudtrain.runs.folder import RunFolder
    from cloudtrain.runs.state import RunState


def observe(run: RunFolder, state: RunState) -> Iterator[Observation]:
    """Yield news since the last call; update `state` with each one before taking the next.

    Raise CloudError if the job does not exist. The run history knows a job a little later than the
    workspace itself.
    """
    if state.has_ended and not state.may_have_started:
        return

    cloud = client_of_run(run)
    time_now = time.time()
    if state.ref is None:
        yield Observation(events=reconcile(cloud, run, time_now))
    if state.ref is None:
        return

    details = cloud.details(run.run_id)
    if details is None:
        if is_new(state, time_now):
            return
        raise job_not_found(cloud, run.run_id)

    yield Observation(events=list(_progress(details, state, time_now)))
    final = final_state(details)
    log = LogAttempt(
        lambda positions: new_lines(cloud, logs_of(details), positions, is_over=final is not None)
    )
    yield from log.observations(state)

    if final is not None:  # the lines just read may contain the nodes' own reports
        has_printed = started_at(details) or logs_of(details)
        poll = config_of(run).poll
        waited = not has_printed or log_lag_is_over(
            state, phase_of(details), ended_at(details), poll
        )
        if log.is_done(waited=waited, all_reported=all_nodes_reported(state, state.nodes)):
            end = _end_event(details, state, final, run)
            artifacts = existing_artifacts(cloud, run.run_id, artifact_uris(request_of(run)))
            yield Observation(events=[end.replace(left=artifacts)])


def _progress(details: Mapping[str, Any], state: RunState, time_now: float) -> Iterator[Event]:
    """Yield the phase, and a stop that was requested elsewhere, if they are new."""
    phase = phase_event(details, time_now, state)
    # the list shows that it runs, but not the start
    was_listed_only = phase.since and phase.since < state.started - 1
    if phase.phase != state.phase or was_listed_only:
        yield phase
    if status_of(details) == "CancelRequested" and not state.stop_requested:
        yield StopRequested(time=time_now, reason="Azure ML is cancelling it")


def _end_event(
    details: Mapping[str, Any],
    state: RunState,
    final: FinalState,
    run: RunFolder,
) -> Ended:
    """Return the end in Azure ML's report, corrected by the nodes' reports.

    After our own stop, for example, Azure ML reports "failed" or "canceled" although every node
    saved and ended in order.
    """
    all_reported = all_nodes_reported(state, state.nodes)
    outcomes = set()
    stop_causes = set()
    for report in state.nodes_ended.values():
        outcomes.add(report.outcome)
        if report.outcome == "stopped":
            stop_causes.add(report.why)

    # An eviction stops nodes too: only a stop by us, or by the nodes themselves, overrides Azure ML.
    stopped_by_us = bool(state.stop_requested) or bool(stop_causes & {"time", "stop_file"})
    if all_reported and outcomes == {"succeeded"}:
        final = FinalState("succeeded", "")  # it was done before the cancellation took effect
    elif final.state == "succeeded" and "stopped" in outcomes:
        final = FinalState("stopped", "")  # it ended in order, but early
    elif (
        final.state != "stopped"
        and stopped_by_us
        and "stopped" in outcomes
        and outcomes <= {"stopped", "succeeded"}
    ):
        final = FinalState("stopped", "")

    eviction = _eviction(state)
    if final.state == "stopped":
        reason = final.reason or state.reason or eviction or "it was cancelled"
        if "time" in stop_causes:
            reason = TIME_IS_UP
        if "saved" not in reason:
            reason += incomplete_shutdown(state, "azure.stop_grace gives more")
        final = final._replace(reason=reason)
    elif final.state == "failed" and eviction:
        reason = f"{eviction}: {final.reason}" if final.reason else eviction
        final = final._replace(reason=reason)

    usd_per_hour = max(config_of(run).prices.values(), default=None)
    bill = billing(details, state.nodes, usd_per_hour, _waited(details, state, run))
    return ended_event(state, final, ended_at(details) or time.time(), bill)


def _waited(details: Mapping[str, Any], state: RunState, run: RunFolder) -> float:
    """Return the observed seconds without machines after they were taken away."""
    since = state.waiting_since
    if not since:
        return state.waited

    for event in run.each_event():
        if isinstance(event, Phase) and event.phase == PHASES["Queued"] and event.time >= since:
            return state.waited + max(0.0, ended_at(details) - since)

    return state.waited


def _eviction(state: RunState) -> str:
    """Return a description of a node that its platform stopped; empty without one."""
    for node, report in sorted(state.nodes_ended.items()):
        if report.outcome == "stopped" and report.why in ("sigterm", "preempted"):
            how = "its platform ended it (SIGTERM)"
            if report.why == "preempted":
                how = "its machine was taken away"
            return f"node {node} stopped before it was done: {how}"

    return ""
