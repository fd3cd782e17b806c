"""Phase, end and bill of a job, from its entry in the run history."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal

from cloudtrain.providers.shared.log_attempt import FinalState
from cloudtrain.runs.state_names import WAITING
from cloudtrain_wire.events import Billing, Phase

if TYPE_CHECKING:
    from cloudtrain.runs.state import RunState

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
    "Completed": "bringing the last lines",
    "Failed": "bringing the last lines",
    "Canceled": "bringing the last lines",
}
"""Status -> phase; an unknown status is shown unchanged."""

ENDED: Mapping[str, Literal["succeeded", "failed", "stopped"]] = {
    "Completed": "succeeded",
    "Failed": "failed",
    "Canceled": "stopped",
}
"""Status -> final state."""


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
    if state == "succeeded":
        return FinalState(state, "")

    error = (details.get("error") or {}).get("error") or {}
    message = str(error.get("message") or error.get("code") or "")
    # A real one begins with an empty line and ends with the id of a session.
    message = re.sub(r"\|?\s*session_id=\S+\s*$", "", message).strip()
    return FinalState(state, message)


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
