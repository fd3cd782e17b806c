"""What Azure ML says of a job, in our words: its state, its phase, when it ran, and how it ended. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

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
"""An unknown status is shown as it is."""

ENDED = {"Completed": "succeeded", "Failed": "failed", "Canceled": "stopped"}


def status_of(details: Mapping[str, Any]) -> str:
    """The status as Azure ML writes it."""
    return str(details.get("status", ""))


def phase_of(details: Mapping[str, Any]) -> str:
    """The phase in words."""
    status = status_of(details)
    return PHASES.get(status, status)


def ending(details: Mapping[str, Any]) -> tuple[str, str] | None:
    """The final state and Azure ML's reason; None while the job lives, whatever unknown status it may be in."""
    state = ENDED.get(status_of(details))
    if state is None:
        return None
    error = (details.get("error") or {}).get("error") or {}
    message = str(error.get("message") or error.get("code") or "")
    return state, message if state != "succeeded" else ""


def phase_event(details: Mapping[str, Any], now: float) -> dict[str, Any]:
    """The event that tells the phase."""
    running = {"running": True} if status_of(details) == "Running" else {}
    return {"type": "phase", "time": now, "phase": phase_of(details), **running}


def started_at(details: Mapping[str, Any]) -> float:
    """When it began to run, as a Unix timestamp; 0 when it has not."""
    return seconds(details.get("startTimeUtc"))


def ended_at(details: Mapping[str, Any]) -> float:
    """When it ended, as a Unix timestamp; 0 when it has not."""
    return seconds(details.get("endTimeUtc"))


def billing(details: Mapping[str, Any], nodes: int, usd_per_hour: float | None) -> dict[str, Any]:
    """How long its machines worked for it, and what that comes to. Azure ML itself bills machines, not jobs.

    `usd_per_hour`: of one machine, on demand; None: unknown, and so is the cost.
    """
    begun, over = started_at(details), ended_at(details)
    if not begun or not over:
        return {}
    worked = max(0.0, over - begun)  # clocks differ
    found: dict[str, Any] = {"training_seconds": round(worked)}
    if usd_per_hour is not None:
        found["usd"] = round(worked / 3600 * usd_per_hour * nodes, 4)
    return found


def seconds(text: Any) -> float:
    """Seconds since 1970 of `2026-11-21T07:30:00.1234567+00:00`; 0 for none."""
    try:
        return datetime.fromisoformat(str(text)).timestamp()
    except ValueError:
        return 0.0
