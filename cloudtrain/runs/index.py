"""Index with one line per ended run, so that a list opens one file.

It is a cache: run folders decide, and missing runs are read from their folders.
"""

from __future__ import annotations

import json
import os
from contextlib import suppress
from typing import Any

from cloudtrain.errors import StorageError
from cloudtrain.runs.files import strict_json
from cloudtrain.runs.fold import fold
from cloudtrain.runs.folder import RunFolder
from cloudtrain.runs.state import ENDED, RunState, explain
from cloudtrain.runs.store import MAX_INDEX_BYTES, RunStore
from cloudtrain_launcher.file_locks import locked
from cloudtrain_launcher.packages.bounded_files import read_regular_file

_FIELDS = (
    "run",
    "name",
    "state",
    "reason",
    "cause",
    "provider",
    "contract",
    "nodes",
    "processes",
    "created",
    "started",
    "ended",
    "owner",
    "submitted",
    "kept_until",
)
_TIME = (int, float)
_FIELD_TYPES: dict[str, tuple[type, ...]] = {
    "nodes": (int,),
    "processes": (int,),
    "submitted": (bool,),
    "created": _TIME,
    "started": (*_TIME, type(None)),
    "ended": (*_TIME, type(None)),
    "kept_until": (*_TIME, type(None)),
}
"""Types of a summary's fields; the others are texts."""
_MISSING = object()
_MAX_TIMESTAMP = 253_402_300_800
"""The year 10,000, as a Unix timestamp."""

DAMAGED = "damaged"
"""Listed state of an unreadable run."""


def summaries(store: RunStore) -> list[dict[str, Any]]:
    """Return a summary of every run, newest first. Raise StorageError for the whole folder.

    A run that has not ended is read from its own events. An unreadable run is listed as damaged.
    """
    ids = set(store.ids())
    indexed = {line["run"]: line for line in _read(store) if _is_valid(line) and line["run"] in ids}
    fresh = []
    for run_id in ids - indexed.keys():
        folder = RunFolder(store.runs_dir / run_id)
        try:
            state = fold(run_id, folder.each_event())
        except StorageError as error:
            indexed[run_id] = _damaged(folder, error.message)
            continue
        if not state.created:
            indexed[run_id] = _damaged(folder, "its events do not tell how it began")
            continue
        indexed[run_id] = summary_of(state)
        if _belongs(state):
            fresh.append(indexed[run_id])
    if fresh:
        _append(store, fresh)
    return sorted(indexed.values(), key=lambda s: s["created"], reverse=True)


def index_run(folder: RunFolder, state: RunState) -> None:
    """Add an ended run to the index. Disk errors are ignored."""
    if _belongs(state):
        _append(RunStore(folder.path.parents[1]), [summary_of(state)])


def forget_run(folder: RunFolder) -> None:
    """Delete the index when an ended run continues. It is written again later."""
    with suppress(OSError):
        (RunStore(folder.path.parents[1]).data_dir / "index.jsonl").unlink()


def _belongs(state: RunState) -> bool:
    """Return whether a run is final. A job that counts as not started may still appear."""
    return state.has_ended and not state.may_have_started


def summary_of(state: RunState) -> dict[str, Any]:
    """Return the fields of a state for a list. Times are Unix timestamps."""
    state_json = {**state.to_json(), "cause": explain(state) if state.state == "failed" else ""}
    return {field: state_json[field] for field in _FIELDS}


def _damaged(folder: RunFolder, reason: str) -> dict[str, Any]:
    """Return the summary of an unreadable run, with the time of its folder."""
    try:
        created = folder.path.stat().st_mtime
    except OSError:
        created = 0
    state = RunState(run_id=folder.run_id, state=DAMAGED, reason=reason, created=created)
    return summary_of(state)


def _is_valid(line: Any) -> bool:
    """Return whether a line of the index has all fields with possible values."""
    return (
        isinstance(line, dict)
        and all(
            isinstance(line.get(field, _MISSING), _FIELD_TYPES.get(field, str)) for field in _FIELDS
        )
        and line["state"] in ENDED
        and all(
            0 <= (line[field] or 0) < _MAX_TIMESTAMP
            for field in ("created", "started", "ended", "kept_until")
        )
    )


def _read(store: RunStore) -> list[Any]:
    try:
        data = read_regular_file(store.data_dir / "index.jsonl", MAX_INDEX_BYTES)
    except OSError:
        return []
    lines = data[: data.rfind(b"\n")]
    try:
        return json.loads(b"[" + lines.replace(b"\n", b",") + b"]") if lines else []
    except (ValueError, RecursionError):
        # The index is a cache and is written again, if the disk allows.
        with suppress(OSError):
            (store.data_dir / "index.jsonl").unlink()
        return []


def _append(store: RunStore, fresh: list[dict[str, Any]]) -> None:
    lines = "".join(strict_json(summary, separators=(",", ":")) + "\n" for summary in fresh)
    flags = os.O_WRONLY | os.O_APPEND | os.O_NONBLOCK
    with suppress(OSError), locked(store.data_dir / "index.jsonl", flags=flags) as file:
        # Half a surrogate pair stays an escape.
        os.write(file, lines.encode("utf-8", "backslashreplace"))
