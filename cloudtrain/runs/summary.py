"""Summary of a run for a list, and its line in the index."""

from __future__ import annotations

import math
from collections.abc import Iterable
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cloudtrain.errors import StorageError
from cloudtrain.runs import index
from cloudtrain.runs.files import bytes_of
from cloudtrain.runs.fold import fold
from cloudtrain.runs.folder import RunFolder
from cloudtrain.runs.state import RunState, explain
from cloudtrain.runs.state_names import DAMAGED

if TYPE_CHECKING:
    from cloudtrain_wire.events import Billing

MAX_LISTED = 32
"""Maximum number of arguments and of metrics of a run in the index; others are in its folder."""


def read_summaries(folders: Iterable[RunFolder], data_dir: Path) -> list[dict[str, Any]]:
    """Return a summary of each of these runs, and add those that have ended to the index.

    An unreadable run is listed as damaged.
    """
    summaries = []
    ended = []
    for folder in folders:
        try:
            state = fold(folder.run_id, folder.each_event())
        except StorageError as error:
            summaries.append(_damaged(folder, error.message))
            continue

        if not state.created:
            summaries.append(_damaged(folder, "its events do not tell how it began"))
            continue

        summary = summary_of(state)
        summaries.append(summary)
        if _belongs(state):
            summary["bytes"] = bytes_of(folder.path)
            ended.append(summary)

    if ended:
        index.append(data_dir, ended)

    return summaries


def index_run(folder: RunFolder, state: RunState) -> None:
    """Add an ended run to the index. Disk errors are ignored."""
    if _belongs(state):
        summary = summary_of(state) | {"bytes": bytes_of(folder.path)}
        index.append(folder.path.parents[1], [summary])


def _belongs(state: RunState) -> bool:
    """Return whether a run is final. A job that counts as not started may still appear."""
    return state.has_ended and not state.may_have_started


def summary_of(state: RunState) -> dict[str, Any]:
    """Return the fields of a state for a list. Times are Unix timestamps.

    `metrics` has the last values, `best` the best ones, where the name tells which those are.
    `bytes`, the size of the run's folder, is None: who knows the folder adds it.
    """
    document = state.to_json() | {"cause": "", "billed_seconds": None, "usd": None, "bytes": None}
    if bill := state.billing:
        document["billed_seconds"] = _billed_seconds(bill)
        document["usd"] = bill.usd
    if state.state == "failed":
        document["cause"] = explain(state)

    document["arguments"] = dict(islice(state.arguments.items(), MAX_LISTED))
    document["tags"] = state.tags
    document["metrics"] = {}
    document["best"] = {}
    known_first = sorted(state.series.values(), key=lambda series: series.best is None)
    for series in known_first[:MAX_LISTED]:
        document["metrics"][series.name] = _finite(series.last[0])
        if series.best:
            document["best"][series.name] = _finite(series.best[0])

    return {field: document[field] for field in index.FIELDS}


def _finite(value: float) -> float | None:
    """Return a number that JSON has, or None."""
    return value if math.isfinite(value) else None


def _billed_seconds(bill: Billing) -> float | None:
    """Return the billed seconds of each machine, also while it was kept."""
    seconds = bill.billable_seconds
    if seconds is None:
        seconds = bill.training_seconds
    if seconds is None:
        return None

    return seconds + (bill.kept_seconds or 0)


def _damaged(folder: RunFolder, reason: str) -> dict[str, Any]:
    """Return the summary of an unreadable run, with the time of its folder."""
    try:
        created = folder.path.stat().st_mtime
    except OSError:
        created = 0

    state = RunState(run_id=folder.run_id, state=DAMAGED, reason=reason, created=created)
    return summary_of(state)
