"""Runs in a data folder: create one, find one by its id, or list them by an index.

The index has one line per ended run, so that a list opens one file. It is a cache: run folders
decide, and missing runs are read from their folders.
"""

from __future__ import annotations

import json
import math
import os
import re
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cloudtrain.errors import RunNotFound, StorageError, did_you_mean
from cloudtrain.runs.files import (
    DATA_DIR_HINT,
    bytes_of,
    make_private_folder,
    new_folder,
    restrict_permissions,
    storing,
    strict_json,
)
from cloudtrain.runs.fold import fold
from cloudtrain.runs.folder import PLAN, SUBMIT_LOCK, RunFolder
from cloudtrain.runs.record import RunRecord
from cloudtrain.runs.state import RunState, explain
from cloudtrain.runs.state_names import ENDED
from cloudtrain_wire.bounded_files import read_regular_file
from cloudtrain_wire.file_locks import FileLock, acquire, locked
from cloudtrain_wire.process_identity import ProcessIdentity

if TYPE_CHECKING:
    from cloudtrain_wire.events import Billing, Event


SWEEPS = "sweeps"
"""Folder of all sweeps in a data folder."""

_TRIAL = re.compile(r"(.+)(?:-t[0-9]{3,}(?:-[0-9]+)?|-[0-9]{3,}-[0-9a-z]{8}|_[0-9]+)")
"""Second form: training jobs of SageMaker's tuning jobs. Third: children of Azure ML's sweep jobs."""

MAX_INDEX_BYTES = 1 << 28
"""Limit of the index: lines of about a million runs."""

USED = ".used"
"""Suffix of an empty file beside a source: its time is the last use by a submit."""

REMOVAL_LOCK = "removal.lock"
"""File that a removal locks, and that the creation of a run shares."""

CLEANUP_FOLDER = "leftovers"
"""Folder with one entry per run that may have left something outside its own folder."""

_TEXT = (str,)
_COUNT = (int,)
_MAPPING = (dict,)
_TIME = (int, float)
_NUMBER_OR_NONE = (int, float, type(None))
_SUMMARY_FIELDS: dict[str, tuple[type, ...]] = {
    "run": _TEXT,
    "name": _TEXT,
    "state": _TEXT,
    "reason": _TEXT,
    "cause": _TEXT,
    "provider": _TEXT,
    "contract": _TEXT,
    "nodes": _COUNT,
    "processes": _COUNT,
    "created": _TIME,
    "started": _NUMBER_OR_NONE,
    "ended": _NUMBER_OR_NONE,
    "owner": _TEXT,
    "submitted": (bool,),
    "kept_until": _NUMBER_OR_NONE,
    "billed_seconds": _NUMBER_OR_NONE,
    "usd": _NUMBER_OR_NONE,
    "arguments": _MAPPING,
    "tags": _MAPPING,
    "metrics": _MAPPING,
    "best": _MAPPING,
    "bytes": _COUNT,
}
"""Fields of a summary, with the types that JSON gives them."""
_MAX_TIMESTAMP = 253_402_300_800
"""The year 10,000, as a Unix timestamp."""

MAX_LISTED = 32
"""Maximum number of arguments and of metrics of a run in the index; others are in its folder."""

DAMAGED = "damaged"
"""Listed state of an unreadable run."""


def trial_run_id(sweep_id: str, trial: int, attempt: int) -> str:
    """Return the id of a trial's run: `digits-k2x9-t007`, then `digits-k2x9-t007-2`."""
    run_id = f"{sweep_id}-t{trial:03}"
    if attempt < 2:
        return run_id

    return f"{run_id}-{attempt}"


def sweep_of_run(run_id: str, sweeps: Iterable[str]) -> str:
    """Return the sweep of a trial's run among these, or ""."""
    match = _TRIAL.fullmatch(run_id)
    if match is None or match[1] not in sweeps:
        return ""

    return match[1]


def sweep_ids(data_dir: Path) -> set[str]:
    """Return the ids of all sweeps. Raise StorageError if their folder cannot be read."""
    root = data_dir / SWEEPS
    try:
        with os.scandir(root) as entries:
            return set(_folder_names(entries))
    except FileNotFoundError:
        return set()
    except OSError as error:
        raise StorageError(f"{root}: {error.strerror}") from None


def _folder_names(entries: Iterable[os.DirEntry[str]]) -> list[str]:
    return [entry.name for entry in entries if not entry.name.startswith(".") and entry.is_dir()]


def sweep_named(name: str, data_dir: Path, runs: Iterable[str]) -> str:
    """Return the sweep of that id or unique beginning, which only its own trials share, or ""."""
    sweeps = sweep_ids(data_dir)
    if name in sweeps:
        return name
    begun = [sweep for sweep in sweeps if name and sweep.startswith(name)]
    single_runs = [run for run in runs if run.startswith(name) and sweep_of_run(run, begun) == ""]
    if len(begun) != 1 or single_runs:
        return ""

    return begun[0]


class RunStore:
    """Runs of one data folder."""

    def __init__(self, data_dir: Path) -> None:
        self.data_dir = data_dir
        self.runs_dir = data_dir / "runs"

    def create(
        self,
        run_id: str,
        documents: Mapping[str, str],
        first_event: Event | None = None,
        submit_lock: list[FileLock] | None = None,
    ) -> RunFolder:
        """Create a run folder with these documents (text by name) and its first event, atomically.

        Append the lock of the submission to `submit_lock`, held from the creation of the folder
        until its release. Raise RunExists if the id is taken, StorageError if the disk refuses.
        """
        folder = RunFolder(self.runs_dir / run_id)
        with self.unchanged(), new_folder(folder.path, documents, "run") as draft:
            restrict_permissions(self.data_dir)
            make_private_folder(draft / "logs")
            if submit_lock is not None:
                submit_lock.append(_lock_of_submission(draft))
                if sys.platform == "win32":  # which renames no folder with an open file
                    submit_lock.pop().release()

            if first_event is not None:
                RunFolder(draft).append(first_event, durable=True)
            self._drop_from_index(run_id)

        if submit_lock == []:
            submit_lock.append(_lock_of_submission(folder.path))

        return folder

    @contextmanager
    def unchanged(self, *, alone: bool = False) -> Iterator[None]:
        """Keep others from removing things inside the block. Raise StorageError.

        `alone`: they create no runs either.
        """
        with storing(self.data_dir):
            make_private_folder(self.data_dir)
            lock = acquire(self.data_dir / REMOVAL_LOCK, shared=not alone)

        assert lock is not None  # noqa: S101  (it has waited)
        try:
            yield
        finally:
            lock.release()

    def discard(self, run: RunFolder) -> None:
        """Remove a run that was never started; its id is free again. Raise StorageError."""
        import shutil  # rarely needed

        removed = run.path.with_name(f".{run.run_id}.{os.urandom(4).hex()}")
        with storing(run.path):
            run.path.rename(removed)
        shutil.rmtree(removed, ignore_errors=True)

    def _drop_from_index(self, run_id: str) -> None:
        """Delete the index if it lists a removed run of that id. It is written again later."""
        index = self.data_dir / "index.jsonl"
        with suppress(OSError):
            content = read_regular_file(index, MAX_INDEX_BYTES)
            is_listed = f'"run":"{run_id}"'.encode() in content
            if is_listed and not (self.runs_dir / run_id).exists():
                index.unlink()

    def ids(self) -> list[str]:
        """Return all run ids, unordered. Raise StorageError if the folder cannot be read."""
        restrict_permissions(self.data_dir)
        try:
            with os.scandir(self.runs_dir) as entries:
                return _folder_names(entries)
        except FileNotFoundError:
            return []
        except OSError as error:
            raise StorageError(f"{self.runs_dir}: {error.strerror}", hint=DATA_DIR_HINT) from None

    def runs_to_clean_up(self) -> frozenset[str]:
        """Return ids of runs whose provider may have to remove something; often empty."""
        try:
            return frozenset(path.name for path in (self.data_dir / CLEANUP_FOLDER).iterdir())
        except OSError:
            return frozenset()

    def open(self, name: str) -> RunFolder:
        """Return the run of that id, the only run of this machine that begins so, or the last one.

        A run of another machine needs its whole id. Raise RunNotFound otherwise.
        """
        ids = self.ids()
        if not ids:
            raise RunNotFound(
                f"there are no runs in {self.runs_dir}", hint="cloudtrain submit starts one"
            )

        if name == "last":
            own_runs = [RunFolder(self.runs_dir / run_id) for run_id in ids if self._is_own(run_id)]
            matches = sorted(own_runs, key=submitted_at)[-1:]
        elif name in ids:
            matches = [RunFolder(self.runs_dir / name)]
        else:
            begun = [run_id for run_id in sorted(ids) if name and run_id.startswith(name)]
            matches = [
                RunFolder(self.runs_dir / run_id) for run_id in begun if self._is_own(run_id)
            ]

        if len(matches) > 1:
            shown = ", ".join(run.run_id for run in matches[:5])
            raise RunNotFound(
                f"{name!r} fits {len(matches)} runs: {shown}", hint="give more letters of the id"
            )

        if not matches:
            raise RunNotFound(
                f"there is no run {name!r}{did_you_mean(name, ids)}",
                hint="cloudtrain list shows all runs; one of another machine needs its whole id",
            )

        return matches[0]

    def _is_own(self, run_id: str) -> bool:
        return not RunRecord(RunFolder(self.runs_dir / run_id)).is_of_another_machine


@dataclass(frozen=True, slots=True)
class Submission:
    """Run or sweep that this machine submitted."""

    folder: RunFolder
    """Folder; a sweep's has the documents of a run, too."""
    is_sweep: bool

    @property
    def id(self) -> str:
        """Id of the run or the sweep."""
        return self.folder.run_id

    @property
    def places(self) -> frozenset[str]:
        """Folder of the job and folder of the command; empty if the plan cannot be read."""
        return RunRecord(self.folder).places

    def is_from(self, folder: Path) -> bool:
        """Return whether it was submitted from `folder`, or its job lies there."""
        return str(folder) in self.places


def submissions(store: RunStore, without: Collection[str] = ()) -> Iterator[Submission]:
    """Yield runs and sweeps of this machine, newest first. Trials are left out, and these runs.

    Raise StorageError if the folder of all runs cannot be read.
    """
    sweeps = sweep_ids(store.data_dir)
    candidates = [
        Submission(RunFolder(store.data_dir / SWEEPS / sweep), is_sweep=True) for sweep in sweeps
    ]
    for run_id in store.ids():
        if run_id not in without and not sweep_of_run(run_id, sweeps):
            candidates.append(Submission(RunFolder(store.runs_dir / run_id), is_sweep=False))

    candidates.sort(key=lambda submission: submitted_at(submission.folder), reverse=True)
    for candidate in candidates:
        if not RunRecord(candidate.folder).is_of_another_machine:
            yield candidate


def submitted_at(run: RunFolder) -> int:
    """Return when a run or sweep was submitted; 0 if that is unknown."""
    # The submit writes the plan once; the folder's own time changes.
    try:
        return os.stat(run.path / PLAN).st_mtime_ns  # noqa: PTH116
    except OSError:
        return 0


def summaries(store: RunStore) -> list[dict[str, Any]]:
    """Return a summary of every run, newest first. Raise StorageError for the whole folder.

    A run that has not ended is read from its own events. An unreadable run is listed as damaged.
    """
    ids = set(store.ids())
    lines = _read(store)
    valid = [line for line in lines if _is_valid(line)]
    if len(valid) < len(lines):  # of an earlier version, or damaged
        _remove_index(store)
        valid = []

    indexed = {line["run"]: line for line in valid if line["run"] in ids}
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
            indexed[run_id]["bytes"] = bytes_of(folder.path)
            fresh.append(indexed[run_id])

    if fresh:
        _append(store, fresh)
    return sorted(indexed.values(), key=lambda s: s["created"], reverse=True)


def index_run(folder: RunFolder, state: RunState) -> None:
    """Add an ended run to the index. Disk errors are ignored."""
    if _belongs(state):
        summary = summary_of(state) | {"bytes": bytes_of(folder.path)}
        _append(RunStore(folder.path.parents[1]), [summary])


def forget_run(folder: RunFolder) -> None:
    """Delete the index when an ended run continues. It is written again later."""
    _remove_index(RunStore(folder.path.parents[1]))


def _remove_index(store: RunStore) -> None:
    with suppress(OSError):
        (store.data_dir / "index.jsonl").unlink()


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

    return {field: document[field] for field in _SUMMARY_FIELDS}


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


def _lock_of_submission(folder: Path) -> FileLock:
    lock = acquire(folder / SUBMIT_LOCK)
    assert lock is not None  # noqa: S101  (it has waited)
    os.write(lock.file, ProcessIdentity.own_text().encode())
    return lock


def _is_valid(line: Any) -> bool:
    """Return whether a line of the index has all fields with possible values."""
    if not isinstance(line, dict):
        return False

    if not _are_of_a_summary(tuple(line), tuple(map(type, line.values()))):
        return False

    numbers = {*map(type, line["metrics"].values()), *map(type, line["best"].values())}
    if not numbers.issubset(_NUMBER_OR_NONE):
        return False

    for field in ("created", "started", "ended", "kept_until"):
        if not 0 <= (line[field] or 0) < _MAX_TIMESTAMP:
            return False

    return line["state"] in ENDED


@lru_cache  # most lines of an index have the same types
def _are_of_a_summary(fields: tuple[str, ...], types: tuple[type, ...]) -> bool:
    """Return whether a line with these fields, and values of these types, is a summary."""
    found = dict(zip(fields, types, strict=True))
    return all(found.get(field) in wanted for field, wanted in _SUMMARY_FIELDS.items())


def _read(store: RunStore) -> list[Any]:
    try:
        data = read_regular_file(store.data_dir / "index.jsonl", MAX_INDEX_BYTES)
    except OSError:
        return []

    lines = data[: data.rfind(b"\n")]
    if not lines:
        return []

    try:
        summaries_read: list[Any] = json.loads(b"[" + lines.replace(b"\n", b",") + b"]")
        return summaries_read
    except (ValueError, RecursionError):
        _remove_index(store)  # it is a cache and is written again, if the disk allows
        return []


def _append(store: RunStore, fresh: list[dict[str, Any]]) -> None:
    lines = "".join(strict_json(summary, separators=(",", ":")) + "\n" for summary in fresh)
    flags = os.O_WRONLY | os.O_APPEND
    with suppress(OSError), locked(store.data_dir / "index.jsonl", flags=flags) as file:
        # Half a surrogate pair stays an escape.
        os.write(file, lines.encode("utf-8", "backslashreplace"))
