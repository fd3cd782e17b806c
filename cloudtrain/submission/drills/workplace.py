"""Where the runs of drills are kept: a data folder of their own for each job, below the usual one.

So drills are neither listed among the runs, nor is one of them the last run, nor do they count as
rehearsals. The next drill of a job replaces what the one before has left there, and ends what it
left running.
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
from cloudtrain_launcher.file_locks import acquire, stand_in

SCORECARD = "scorecard.json"
LOCK = "drill.lock"
_KEPT = (LOCK, stand_in(Path(LOCK)).name, "packages")
"""What stays from drill to drill: installed packages take minutes."""


def drill_folder(data_dir: Path, job: str) -> Path:
    """The data folder of the drills of a job, by its name."""
    return data_dir / "drills" / job


@contextmanager
def workplace(folder: Path) -> Iterator[None]:
    """The folder, locked and empty. RefusedError while another drill of that job goes on;
    StorageError.
    """
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
    """End what an earlier drill has left running, and remove what it has left."""
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
    """Remove runs of which nothing is to be learnt any more."""
    for run in runs:
        shutil.rmtree(folder / "runs" / run, ignore_errors=True)
    with suppress(OSError):
        (folder / "index.jsonl").unlink()  # made anew from what is left


def write_scorecard(folder: Path, text: str) -> None:
    """Keep the scorecard beside the runs. StorageError when the disk refuses."""
    with storing(folder):
        replace_text(folder / SCORECARD, text)
