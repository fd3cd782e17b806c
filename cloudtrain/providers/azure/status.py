"""Observe a job: its run history, its new log lines, and the events that follow from both."""

from __future__ import annotations

import re
import time
from collections.abc import Generator, Iterator, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal

from cloudtrain.providers.azure.config import client_of_run, config_of, request_of
from cloudtrain.providers.azure.results import artifact_uris, existing_artifacts
from cloudtrain.providers.azure.submit import job_not_found, reconcile
from cloudtrain.providers.shared.idempotent_create import is_new
from cloudtrain.providers.shared.log_attempt import (
    FinalState,
    LogAttempt,
    all_nodes_reported,
    backfill,
    ended_event,
    incomplete_shutdown,
)
from cloudtrain.runs.folder import RunFolder
from cloudtrain.runs.logs import LogPart, Observation, Positions
from cloudtrain.runs.state import WAITING, RunState
from cloudtrain_wire.events import Billing, Ended, Event, Phase, StopRequested

if TYPE_CHECKING:
    from cloudtrain.providers.azure.client import Workspace


LOG_LAG_POLLS = 3
"""Polling intervals to wait for the last log lines after the end of a job."""

LOG = re.compile(r"(?:.*/)?user_logs/std_log(?:_process_(\d+))?\.txt")
"""Name of a process's log; without a number if there is only one.

The SDK streams only the first.
"""

MAX_READS = 8
"""Reads per log and call; the rest follows at the next call."""

PHASES = {
    "NotStarted": "not started",
    "Queued": WAITING,
    "Scheduled": "scheduled",
    "Provisioning": "launching machines",
    "Preparing": "preparing the environment",
    "Starting": "starting",
    "Running": "training",
    "Finalizing": "uploading logs and outputs",
    "CancelRequested": "stopping",
    "Paused": "paused",
    "NotResponding": "not responding",
    **dict.fromkeys(("Completed", "Failed", "Canceled"), "bringing the last lines"),
}
"""Status -> phase; an unknown status is shown unchanged."""

ENDED: Mapping[str, Literal["succeeded", "failed", "stopped"]] = {
    "Completed": "succeeded",
    "Failed": "failed",
    "Canceled": "stopped",
}
"""Status -> final state."""


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
        waited = _log_lag_is_over(details, state, time_now, config_of(run).poll)
        if log.is_done(waited=waited, all_reported=all_nodes_reported(state, state.nodes)):
            end = _end_event(details, state, final, run)
            artifacts = existing_artifacts(cloud, run.run_id, artifact_uris(request_of(run)))
            yield Observation(events=[end.replace(left=artifacts)])


def backfill_logs(run: RunFolder, state: RunState) -> Iterator[Observation]:
    """Yield all log lines of a job that is over."""
    cloud = client_of_run(run)

    def read(positions: Positions) -> Generator[LogPart, None, bool]:
        logs = logs_of(cloud.details(run.run_id) or {})
        return (yield from new_lines(cloud, logs, positions, is_over=True))

    return backfill(read, state)


def logs_of(details: Mapping[str, Any]) -> Mapping[str, str]:
    """Return the signed URLs of a job's logs, by log name."""
    return details.get("logFiles") or {}


def _progress(details: Mapping[str, Any], state: RunState, time_now: float) -> Iterator[Event]:
    """Yield the phase, and a stop that was requested elsewhere, if they are new."""
    phase = phase_event(details, time_now, state)
    # the list shows that it runs, but not the start
    was_listed_only = phase.since and phase.since < state.started - 1
    if phase.phase != state.phase or was_listed_only:
        yield phase
    if status_of(details) == "CancelRequested" and not state.stop_requested:
        yield StopRequested(time=time_now, reason="Azure ML is cancelling it")


def _log_lag_is_over(
    details: Mapping[str, Any],
    state: RunState,
    time_now: float,
    poll_seconds: float,
) -> bool:
    """Return True if the last lines had time to arrive, by the service's clock or ours."""
    if not started_at(details) and not logs_of(details):
        return True  # it never printed anything

    first_seen = state.phase_seen if state.phase == phase_of(details) else time_now
    return time_now - min(first_seen, ended_at(details) or time_now) > LOG_LAG_POLLS * poll_seconds


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
    outcomes = {report.outcome for report in state.nodes_ended.values()}
    stop_causes = {
        report.why for report in state.nodes_ended.values() if report.outcome == "stopped"
    }

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
        late = "the time limit is over (limits.max_runtime, or what limits.max_cost pays for)"
        reason = final.reason or state.reason or eviction or "it was cancelled"
        if "time" in stop_causes:
            reason = late
        if "saved" not in reason:
            reason += incomplete_shutdown(state, "azure.stop_grace gives more")
        final = final._replace(reason=reason)
    elif final.state == "failed" and eviction:
        final = final._replace(reason=f"{eviction}: {final.reason}" if final.reason else eviction)

    prices = config_of(run).prices
    bill = billing(
        details,
        state.nodes,
        max(prices.values(), default=None),
        _waited(details, state, run),
    )
    return ended_event(state, final, ended_at(details) or time.time(), bill)


def _waited(details: Mapping[str, Any], state: RunState, run: RunFolder) -> float:
    """Return the observed seconds without machines after they were taken away."""
    queued = PHASES["Queued"]
    if not state.waiting_since or not any(
        isinstance(event, Phase) and event.phase == queued and event.time >= state.waiting_since
        for event in run.each_event()
    ):
        return state.waited

    return state.waited + max(0.0, ended_at(details) - state.waiting_since)


def _eviction(state: RunState) -> str:
    """Return a description of a node that its platform stopped; empty without one."""
    for node, report in sorted(state.nodes_ended.items()):
        if report.outcome == "stopped" and report.why in ("sigterm", "preempted"):
            how = "its platform ended it (SIGTERM)"
            if report.why == "preempted":
                how = "its machine was taken away"
            return f"node {node} stopped before it was done: {how}"

    return ""


def new_lines(
    cloud: Workspace,
    logs: Mapping[str, str],
    positions: Positions,
    *,
    is_over: bool,
) -> Generator[LogPart, None, bool]:
    """Yield the new lines of all nodes; return True if all of them were read.

    `logs`: signed URLs by name, from the run history. `is_over`: the job has ended, so text after
    the last newline is a line too.
    """
    complete = True
    for name in sorted(logs):
        match = LOG.fullmatch(name)
        if match is not None:
            position = positions.get(name, {})
            node = int(match[1] or 0)
            complete &= yield from _new_lines_of(
                cloud,
                name,
                logs[name],
                node,
                position,
                is_over=is_over,
            )

    return complete


def _new_lines_of(
    cloud: Workspace,
    name: str,
    address: str,
    node: int,
    position: Mapping[str, Any],
    *,
    is_over: bool,
) -> Generator[LogPart, None, bool]:
    # Offset of the next byte, and creation time: after a preemption a new log replaces the old one.
    place = {"offset": 0, "created": "", **position}
    for _ in range(MAX_READS):
        part = cloud.read_log(address, place["offset"], place["created"])
        if part is None:
            return True
        lines = part.data[: part.data.rfind(b"\n") + 1]
        # Text without a newline counts at the end of the log, or if it alone fills the chunk.
        text = part.data if (not lines if part.more else is_over) else lines
        place |= {"offset": part.start + len(text), "created": part.created}
        if not text:
            return True
        read_at = time.time()  # Azure ML's logs lack timestamps
        lines_read = [
            (read_at, line.rstrip(b"\r")) for line in text.removesuffix(b"\n").split(b"\n")
        ]
        yield LogPart(
            node=node,
            lines=lines_read,
            stream=name,
            position=dict(place),
        )
        if not part.more:
            return True

    return False


def status_of(details: Mapping[str, Any]) -> str:
    """Return the status in Azure ML's spelling."""
    return str(details.get("status", ""))


def phase_of(details: Mapping[str, Any]) -> str:
    """Return the phase; an unknown status unchanged."""
    status = status_of(details)
    return PHASES.get(status, status)


def phase_event(
    details: Mapping[str, Any],
    time_now: float,
    state: RunState | None = None,
) -> Phase:
    """Return the event for the current phase, with the start of a running job.

    `state`: the known state of the run. The history has only the first start: after a wait for
    other machines the job continues when it is observed to.
    """
    event = Phase(time=time_now, phase=phase_of(details))
    if status_of(details) != "Running":
        return event

    began = min(started_at(details), time_now)  # clocks differ
    is_new = state is None or (not state.waiting_since and not 0 < state.started <= began)
    event = event.replace(running=True)
    if began and is_new:
        return event.replace(since=began)

    return event


def final_state(details: Mapping[str, Any]) -> FinalState | None:
    """Return the final state and its reason; None for a running job or an unknown status."""
    state = ENDED.get(status_of(details))
    if state is None:
        return None

    error = (details.get("error") or {}).get("error") or {}
    message = str(error.get("message") or error.get("code") or "")
    # A real one begins with an empty line and ends with the id of a session.
    message = re.sub(r"\|?\s*session_id=\S+\s*$", "", message).strip()
    return FinalState(state, message if state != "succeeded" else "")


def started_at(details: Mapping[str, Any]) -> float:
    """Return the start of the job as a Unix timestamp; 0 without one."""
    return timestamp(details.get("startTimeUtc"))


def ended_at(details: Mapping[str, Any]) -> float:
    """Return the end of the job as a Unix timestamp; 0 without one."""
    return timestamp(details.get("endTimeUtc"))


def billing(
    details: Mapping[str, Any],
    nodes: int,
    usd_per_hour: float | None,
    waited: float = 0.0,
) -> Billing | None:
    """Return the duration of the job and, if the price is known, `usd`; None before its end.

    `usd_per_hour`: on-demand price of one machine; None: unknown. `waited`: observed seconds
    without machines, after they were taken away. Azure bills machines, not jobs, so this is an
    estimate.
    """
    started = started_at(details)
    ended = ended_at(details)
    if not started or not ended:
        return None

    duration = max(0.0, ended - started - waited)  # clocks differ
    bill = Billing(training_seconds=round(duration))
    if usd_per_hour is not None:
        bill = bill.replace(usd=round(duration / 3600 * usd_per_hour * nodes, 4))

    return bill


def timestamp(text: Any) -> float:
    """Return the Unix timestamp of `2026-11-21T07:30:00.1234567+00:00`; 0 for other text."""
    try:
        return datetime.fromisoformat(str(text)).timestamp()
    except ValueError:
        return 0.0
