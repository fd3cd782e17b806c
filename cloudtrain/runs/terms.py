"""What a run may cost and how long it may take, by the plan that it was submitted with."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass

from cloudtrain.errors import StorageError
from cloudtrain.runs.folder import RunFolder
from cloudtrain.runs.record import RunRecord, part_of


@dataclass(frozen=True, kw_only=True, slots=True)
class Terms:
    """The price of a run's machines, and what ends it."""

    usd_per_hour: float | None = None
    """Of all its machines at list price; None: the price is not known, or they have none."""
    is_billed: bool = True
    """Whether that is paid: not for a rehearsal, which keeps the limits of the cloud without its
    price.
    """
    kept_seconds: int = 0
    """How long its machines are kept, and billed, after its end."""
    seconds: int = 0
    """It is stopped when it has run for so long; 0: nothing limits it."""
    overhead_seconds: int = 0
    """What a limit on cost sets aside besides: the time to stop, machines that are kept."""
    limit: str = ""
    """What says so, `limits.max_cost` or `limits.max_runtime`; empty: the platform."""


def terms_of(folder: RunFolder) -> Terms:
    """The terms of a run; of one whose plan cannot be read, or that another machine submitted, none
    are known.
    """
    with suppress(StorageError, TypeError, ValueError):
        record = RunRecord(folder)
        quote = record.quote
        earlier = record.stop_after_seconds
        usd = part_of(quote, "price").get("usd")
        allowed = part_of(record.spec, "limits").get("max_runtime")
        seconds = int(quote.get("max_seconds") or allowed or 0)
        if record.trial:  # it is to end early, at a rung
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
