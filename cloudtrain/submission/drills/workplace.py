"""Data folder of the drills of a job, below the usual one.

So drills are not listed among the runs, are never the last run, and do not count as rehearsals. The
next drill of a job ends and replaces the previous runs.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from cloudtrain.errors import CloudtrainError, RefusedError
from cloudtrain.runs.files import make_private_folder, replace_text, storing
from cloudtrain.runs.store import RunStore
from cloudtrain.submission.drills.watching import Watched
from cloudtrain.submission.run import Run
from cloudtrain_launcher.file_locks import acquire

SCORECARD = "scorecard.json"
LOCK = "drill.lock"
_KEPT = (LOCK, "packages")
"""Entries that stay from drill to drill: installing packages takes minutes."""


def drill_folder(data_dir: Path, job: str) -> Path:
    """Return the data folder of a job's drills."""
    return data_dir / "drills" / job


@contextmanager
def workplace(folder: Path) -> Iterator[None]:
    """Lock and empty the folder. Raise RefusedError during another drill; or StorageError."""
    with storing(folder):
        make_private_folder(folder)
        lock = acquire(folder / LOCK, wait=False)
        if lock is None:
            owner = (folder / LOCK).read_text(errors="replace")[:20]
            hint = f"wait for it, or end it: kill -INT {owner}"
            raise RefusedError(
                f"a drill of this job goes on already, in process {owner}", hint=hint
            )
    try:
        with storing(folder):
            os.ftruncate(lock.file, 0)
            os.pwrite(lock.file, str(os.getpid()).encode(), 0)
            _clear(folder)
        yield
    finally:
        lock.release()


def _clear(folder: Path) -> None:
    """End and remove the runs of an earlier drill."""
    store = RunStore(folder)
    for run_id in store.ids():
        with suppress(CloudtrainError):
            watched = Watched(Run(store.open(run_id)))
            watched.look()
            if not watched.state.has_ended:
                watched.abort()
    for entry in folder.iterdir():
        if entry.name not in _KEPT:
            shutil.rmtree(entry) if entry.is_dir() and not entry.is_symlink() else entry.unlink()


def remove_runs(folder: Path, runs: Collection[str]) -> None:
    """Remove runs without any information."""
    for run in runs:
        shutil.rmtree(folder / "runs" / run, ignore_errors=True)
    with suppress(OSError):
        (folder / "index.jsonl").unlink()  # rebuilt from the remaining runs


def write_scorecard(folder: Path, text: str) -> None:
    """Write the scorecard beside the runs. May raise StorageError."""
    with storing(folder):
        replace_text(folder / SCORECARD, text)
