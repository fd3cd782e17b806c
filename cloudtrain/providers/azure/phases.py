"""Translates a job's entry in the run history: its phase, final state, times and billing. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Literal

from cloudtrain.providers.shared.outcome import FinalState
from cloudtrain.runs.state import RunState
from cloudtrain_launcher.events import Billing, Phase

PHASES = {
    "NotStarted": "not started",
    "Queued": "waiting for capacity",
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
"""Status -> phase; an unknown status is shown as it is."""

ENDED: Mapping[str, Literal["succeeded", "failed", "stopped"]] = {
    "Completed": "succeeded",
    "Failed": "failed",
    "Canceled": "stopped",
}
"""Status -> final state."""


def status_of(details: Mapping[str, Any]) -> str:
    """The status as Azure ML writes it."""
    return str(details.get("status", ""))


def phase_of(details: Mapping[str, Any]) -> str:
    """The phase in words; an unknown status as it is."""
    status = status_of(details)
    return PHASES.get(status, status)


def phase_event(details: Mapping[str, Any], now: float, state: RunState | None = None) -> Phase:
    """The event for the current phase. A job that is first seen while it runs began to run when the
    history says so.

    `state`: what is known of the run so far. The history has the first start alone: after a wait
    for other machines a job goes on when it is seen to.
    """
    event = Phase(time=now, phase=phase_of(details))
    if status_of(details) != "Running":
        return event
    began = min(started_at(details), now)  # clocks differ
    is_new = state is None or (not state.waiting_since and not 0 < state.started <= began)
    return (
        event.replace(running=True, since=began)
        if began and is_new
        else event.replace(running=True)
    )


def final_state(details: Mapping[str, Any]) -> FinalState | None:
    """The final state and Azure ML's reason; None while the job is not over, including unknown
    statuses.
    """
    state = ENDED.get(status_of(details))
    if state is None:
        return None
    error = (details.get("error") or {}).get("error") or {}
    message = str(error.get("message") or error.get("code") or "")
    return FinalState(state, message if state != "succeeded" else "")


def started_at(details: Mapping[str, Any]) -> float:
    """When the job began to run, as a Unix timestamp; 0 if it has not."""
    return timestamp(details.get("startTimeUtc"))


def ended_at(details: Mapping[str, Any]) -> float:
    """When the job ended, as a Unix timestamp; 0 if it has not."""
    return timestamp(details.get("endTimeUtc"))


def billing(
    details: Mapping[str, Any], nodes: int, usd_per_hour: float | None, waited: float = 0.0
) -> Billing | None:
    """How long the job ran (`training_seconds`), and `usd` where the price is known; None before
    its end.

    `usd_per_hour`: on-demand price of one machine; None: unknown. `waited`: the seconds in between
    in which it was seen to have no machines, after they were taken away. Azure bills machines, not
    jobs, so this is an estimate.
    """
    started = started_at(details)
    ended = ended_at(details)
    if not started or not ended:
        return None
    duration = max(0.0, ended - started - waited)  # clocks differ
    found = Billing(training_seconds=round(duration))
    if usd_per_hour is not None:
        found = found.replace(usd=round(duration / 3600 * usd_per_hour * nodes, 4))
    return found


def timestamp(text: Any) -> float:
    """The Unix timestamp of `2026-11-21T07:30:00.1234567+00:00`; 0 for None or anything else."""
    try:
        return datetime.fromisoformat(str(text)).timestamp()
    except ValueError:
        return 0.0
