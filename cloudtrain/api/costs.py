"""Cost of runs in clouds: billed time, its price, and runs that go up to a cap."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

from cloudtrain.api.listing import list_runs
from cloudtrain.api.open_runs import may_start_late
from cloudtrain.api.selected_runs import RunFilter
from cloudtrain.declaration import declaration_of
from cloudtrain.errors import StorageError, UsageError
from cloudtrain.runs.fold import fold
from cloudtrain.runs.folder import RunFolder
from cloudtrain.runs.forecast import HOUR
from cloudtrain.runs.record import RunRecord, terms_of
from cloudtrain.runs.state_names import ENDED
from cloudtrain.runs.store import RunStore
from cloudtrain.runs.tombstones import tombstones
from cloudtrain.settings import data_folder

COST_FIELDS = (
    "run",
    "name",
    "owner",
    "provider",
    "state",
    "created",
    "removed",
    "machine",
    "nodes",
    "spot",
    "billed_seconds",
    "usd",
    "usd_per_hour",
    "price_date",
    "usd_so_far",
    "cap_usd",
)
"""Fields of a run's cost. None: unknown; `usd_so_far` and `cap_usd` are of runs that still run."""

GROUPS = ("owner", "job", "month", "provider")


def costs(
    *, data_dir: str | None = None, provider: str | None = None, only: RunFilter | None = None
) -> list[dict[str, Any]]:
    """Return the cost of each run in a cloud, newest first, of removed runs too.

    Each has the fields `COST_FIELDS`. `provider`: only its runs. `only`: a filter by name, time and
    tags. Runs on this machine cost nothing and are left out. Runs that have not ended are asked
    once.
    """
    store = RunStore(data_folder(data_dir))
    rows = []
    for summary in list_runs(data_dir=data_dir, provider=provider, only=only):
        if is_billed(summary):
            folder = RunFolder(store.runs_dir / summary["run"])
            rows.append(cost_of(folder, summary, time.time()))

    present = {(row["run"], row["created"]) for row in rows}
    for line in tombstones(store.data_dir):
        is_wanted = provider in (None, line["provider"]) and (only is None or only.fits(line))
        if is_wanted and is_billed(line) and (line["run"], line["created"]) not in present:
            rows.append({field: line.get(field) for field in COST_FIELDS})

    return sorted(rows, key=lambda row: -row["created"])


def is_billed(run: Mapping[str, Any]) -> bool:
    """Return whether a run is in a cloud, by its summary."""
    try:
        return declaration_of(run["provider"]).is_remote
    except UsageError:  # of a package that is not installed, or of a damaged run
        return bool(run["provider"])


def cost_of(folder: RunFolder, summary: Mapping[str, Any], now: float) -> dict[str, Any]:
    """Return the cost of a run by its summary and its plan, with the fields `COST_FIELDS`."""
    cost: dict[str, Any] = {field: summary.get(field) for field in COST_FIELDS}
    record = RunRecord(folder)
    quote: Mapping[str, Any] = {}
    with suppress(StorageError):
        quote = record.quote
        cost["owner"] = cost["owner"] or record.owner
        cost["machine"] = " or ".join(record.machines) or None
        cost["spot"] = record.is_spot
        cost["price_date"] = record.price.get("as_of")
        if record.price:
            cost["usd_per_hour"] = record.price["usd"] * summary["nodes"]

    has_ended = summary["state"] in ENDED
    if not has_ended and quote.get("prepaid"):
        state = fold(summary["run"], folder.each_event())
        cost["usd_per_hour"] = terms_of(folder, state.instance).usd_per_hour

    if has_ended and not summary["submitted"]:
        state = fold(summary["run"], folder.each_event())
        if not may_start_late(state, now):  # no job, no bill
            cost["billed_seconds"] = cost["billed_seconds"] or 0
            cost["usd"] = cost["usd"] or 0.0

    per_hour = cost["usd_per_hour"]
    if not has_ended and per_hour is not None:
        cost["usd_so_far"] = per_hour * max(0.0, now - (summary["started"] or now)) / HOUR
        if "max_seconds" in quote:
            seconds = quote["max_seconds"] + quote.get("overhead_seconds", 0)
            seconds *= quote.get("attempts", 1)
            cost["cap_usd"] = max(per_hour * seconds / HOUR, quote.get("dearest_usd") or 0.0)

    return cost


def totals(rows: Sequence[Mapping[str, Any]], by: str = "") -> list[dict[str, Any]]:
    """Return sums of `costs` for each owner, job, month or provider; one without `by`.

    `usd` is the known sum; `unknown` counts ended runs whose cost is not known.
    `cap_usd` is None if the cap of a running one is unknown.
    """
    key = {"job": "name"}.get(by, by)
    groups: dict[str, list[Mapping[str, Any]]] = {} if by else {"": []}
    for row in rows:
        month = datetime.fromtimestamp(row["created"], UTC).strftime("%Y-%m")
        value = {**row, "month": month, "": ""}[key]
        groups.setdefault(str(value or "unknown") if by else "", []).append(row)

    sums = []
    for group, members in sorted(groups.items()):
        running = [row for row in members if row["state"] not in ENDED]
        caps = [row["cap_usd"] for row in running]
        total: dict[str, Any] = {"group": group, "runs": len(members)}
        for field in ("billed_seconds", "usd", "usd_so_far"):
            total[field] = round(sum(row[field] or 0.0 for row in members), 4)

        total["unknown"] = sum(row["usd"] is None for row in members) - len(running)
        total["running"] = len(running)
        total["cap_usd"] = None if None in caps else sum(caps)
        sums.append(total)

    return sums
