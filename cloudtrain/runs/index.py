"""One line per ended run, so that listing thousands of runs opens one file and not thousands.

A cache that heals itself: the folders say which runs there are; what the index lacks is read from its folder.
"""

from __future__ import annotations

import fcntl
import json
import os
from typing import Any

from cloudtrain.runs.state import RunState, fold
from cloudtrain.runs.store import RunFolder, RunStore

_FIELDS = (
    "run",
    "name",
    "state",
    "reason",
    "provider",
    "contract",
    "nodes",
    "processes",
    "created",
    "started",
    "ended",
)
_WHOLE = frozenset(_FIELDS)


def summaries(store: RunStore) -> list[dict[str, Any]]:
    """A summary of every run, newest first; those that have not ended are read from their own events."""
    ids = set(store.ids())
    known = {line["run"]: line for line in _read(store) if _is_whole(line) and line["run"] in ids}
    fresh = []
    for run_id in ids - known.keys():
        folder = RunFolder(store.runs_dir / run_id)
        state = fold(run_id, folder.events())
        known[run_id] = summary(state)
        if state.has_ended:
            fresh.append(known[run_id])
    if fresh:
        _append(store, fresh)
    return sorted(known.values(), key=lambda s: s["created"], reverse=True)


def remember(folder: RunFolder) -> None:
    """Write down how a run has ended, in the moment in which it has."""
    state = fold(folder.run_id, folder.events())
    if state.has_ended:
        _append(RunStore(folder.path.parents[1]), [summary(state)])


def summary(state: RunState) -> dict[str, Any]:
    """What a list shows of a run."""
    whole = state.to_json()
    return {field: whole[field] for field in _FIELDS}


def _is_whole(line: Any) -> bool:
    return (
        isinstance(line, dict)
        and line.keys() >= _WHOLE
        and isinstance(line["run"], str)
        and isinstance(line["created"], (int, float))
    )


def _read(store: RunStore) -> list[Any]:
    try:
        data = (store.data_dir / "index.jsonl").read_bytes()
    except OSError:
        return []
    lines = data[: data.rfind(b"\n")]
    try:
        return json.loads(b"[" + lines.replace(b"\n", b",") + b"]") if lines else []
    except ValueError:
        (store.data_dir / "index.jsonl").unlink(missing_ok=True)  # only a cache: made anew from the folders
        return []


def _append(store: RunStore, fresh: list[dict[str, Any]]) -> None:
    lines = "".join(json.dumps(summary, separators=(",", ":")) + "\n" for summary in fresh)
    try:
        file = os.open(store.data_dir / "index.jsonl", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    except OSError:
        return
    try:
        fcntl.flock(file, fcntl.LOCK_EX)
        os.write(file, lines.encode())
    except OSError:
        pass
    finally:
        os.close(file)
