"""Runs and sweeps that this machine submitted."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

from cloudtrain.runs.folder import RunFolder
from cloudtrain.runs.record import RunRecord
from cloudtrain.runs.store import SWEEPS, RunStore, submitted_at, sweep_ids, sweep_of_run


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
