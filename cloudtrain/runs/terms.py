"""Limits of a run on cost and time, from its plan."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass

from cloudtrain.errors import StorageError
from cloudtrain.runs.folder import RunFolder
from cloudtrain.runs.record import RunRecord, part_of


@dataclass(frozen=True, kw_only=True, slots=True)
class Terms:
    """Price of a run's machines and its limits."""

    usd_per_hour: float | None = None
    """List price of all its machines; None if unknown or without machines."""
    is_billed: bool = True
    """False for a rehearsal, which has the limits of the cloud but no price."""
    kept_seconds: int = 0
    """Seconds that its machines are kept and billed after its end."""
    seconds: int = 0
    """Maximum seconds of its run; 0: no limit."""
    overhead_seconds: int = 0
    """Seconds that a cost limit reserves for the stop and for kept machines."""
    limit: str = ""
    """Origin of the limit: `limits.max_cost`, `limits.max_runtime`; empty: the platform."""


def terms_of(folder: RunFolder) -> Terms:
    """Return the terms of a run; empty if its plan cannot be read or is of another machine."""
    with suppress(StorageError, TypeError, ValueError):
        record = RunRecord(folder)
        quote = record.quote
        earlier = record.stop_after_seconds
        usd = part_of(quote, "price").get("usd")
        allowed = part_of(record.spec, "limits").get("max_runtime")
        seconds = int(quote.get("max_seconds") or allowed or 0)
        if record.trial:  # a trial ends early, at a rung
            seconds = 0
        return Terms(
            usd_per_hour=None if usd is None else usd * quote.get("nodes"),
            is_billed=not record.is_rehearsal,
            kept_seconds=0 if record.is_rehearsal else int(quote.get("kept_seconds") or 0),
            seconds=min(filter(None, (seconds, earlier)), default=0),
            overhead_seconds=max(0, seconds - (earlier or seconds))
            + int(quote.get("overhead_seconds") or 0),
            limit=str(quote.get("cap") or "") if quote else "limits.max_runtime",
        )
    return Terms()
