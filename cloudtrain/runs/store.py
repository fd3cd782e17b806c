"""Runs in a data folder: create one, find one by its id, or list them."""

from __future__ import annotations

import heapq
import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Set
from contextlib import contextmanager, suppress
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cloudtrain.errors import RunNotFound, StorageError, did_you_mean
from cloudtrain.runs import index
from cloudtrain.runs.files import (
    DATA_DIR_HINT,
    make_private_folder,
    new_folder,
    restrict_permissions,
    storing,
)
from cloudtrain.runs.folder import PLAN, SUBMIT_LOCK, RunFolder
from cloudtrain_wire.file_locks import FileLock, acquire
from cloudtrain_wire.process_identity import ProcessIdentity

if TYPE_CHECKING:
    from cloudtrain_wire.events import Event


SWEEPS = "sweeps"
"""Folder of all sweeps in a data folder."""

_TRIAL = re.compile(r"(.+)(?:-t[0-9]{3,}(?:-[0-9]+)?|-[0-9]{3,}-[0-9a-z]{8}|_[0-9]+)")
"""Second form: training jobs of SageMaker's tuning jobs. Third: children of Azure ML's sweep jobs."""

USED = ".used"
"""Suffix of an empty file beside a source: its time is the last use by a submit."""

REMOVAL_LOCK = "removal.lock"
"""File that a removal locks, and that the creation of a run shares."""

CLEANUP_MARKS = "leftovers"
"""Folder with one entry per run that may have left something outside its own folder."""

NOTIFY_MARKS = "notify"
"""Folder with one entry per run whose end no receiver knows yet."""

HISTORY_MARKS = "mlflow"
"""Folder with one entry per run that the server of MLflow lacks, in whole or in part."""


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
        with suppress(OSError):
            is_listed = index.has_run(self.data_dir, run_id)
            if is_listed and not (self.runs_dir / run_id).exists():
                index.remove(self.data_dir)

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

    def marked(self, folder: str) -> frozenset[str]:
        """Return the names in one of the folders with marks; often empty."""
        try:
            return frozenset(os.listdir(self.data_dir / folder))  # noqa: PTH208
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
        from cloudtrain.runs.record import RunRecord  # a list needs no documents

        return not RunRecord(RunFolder(self.runs_dir / run_id)).is_of_another_machine


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
    return newest_summaries(store, sys.maxsize)[0]


def newest_summaries(
    store: RunStore, most: int, also: Set[str] = frozenset()
) -> tuple[list[dict[str, Any]], int]:
    """Return the summaries of the newest runs, and the number of runs that were left out.

    None is left out that goes on, keeps machines, was not started, or is among `also`.
    """
    ids = set(store.ids())
    lines = {}
    wanted = []
    settled = []
    for run, line in index.read(store.data_dir).items():
        if run not in ids:
            continue

        lines[run] = line
        is_settled = line[1] and run not in also
        if is_settled:
            settled.append(line)
        else:
            wanted.append(line)

    if most < len(settled):
        settled = heapq.nlargest(most, settled)

    wanted += settled
    listed = index.summaries(store.data_dir, wanted)
    if listed is None:
        listed = []
        lines = {}

    missing = ids - lines.keys()
    left_out = len(lines) - len(listed)
    if missing:
        from cloudtrain.runs.summary import read_summaries  # slow to import

        folders = [RunFolder(store.runs_dir / run_id) for run_id in missing]
        listed += read_summaries(folders, store.data_dir)

    return sorted(listed, key=itemgetter("created"), reverse=True), left_out


def _lock_of_submission(folder: Path) -> FileLock:
    lock = acquire(folder / SUBMIT_LOCK)
    assert lock is not None  # noqa: S101  (it has waited)
    os.write(lock.file, ProcessIdentity.own_text().encode())
    return lock
