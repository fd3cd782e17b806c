"""Runs and sweeps that this machine submitted, newest first."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from cloudtrain.runs.folder import RunFolder
from cloudtrain.runs.ids import SWEEPS, sweep_ids, sweep_of_run
from cloudtrain.runs.record import PLAN, RunRecord
from cloudtrain.runs.store import RunStore


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


def submissions(store: RunStore) -> Iterator[Submission]:
    """Yield runs and sweeps of this machine, newest first. Trials are left out.

    Raise StorageError if the folder of all runs cannot be read.
    """
    sweeps = sweep_ids(store.data_dir)
    candidates = [
        Submission(RunFolder(store.data_dir / SWEEPS / sweep), is_sweep=True) for sweep in sweeps
    ]
    for run_id in store.ids():
        if not sweep_of_run(run_id, sweeps):
            candidates.append(Submission(RunFolder(store.runs_dir / run_id), is_sweep=False))

    for candidate in sorted(candidates, key=_submitted_at, reverse=True):
        if not RunRecord(candidate.folder).is_of_another_machine:
            yield candidate


def _submitted_at(candidate: Submission) -> int:
    # The submit writes the plan once; the folder's own time changes.
    try:
        return os.stat(candidate.folder.path / PLAN).st_mtime_ns  # noqa: PTH116
    except OSError:
        return 0
