"""Results of all drills of a job, and the folder in which they run."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cloudtrain.errors import CloudtrainError, RefusedError
from cloudtrain.runs.files import make_private_folder, replace_text, storing
from cloudtrain.runs.store import RunStore
from cloudtrain.submission.drills.verdict import DrillRun, Finding, Scenario
from cloudtrain.submission.drills.watching import Watched
from cloudtrain.submission.run import Run
from cloudtrain_launcher.file_locks import acquire


@dataclass(frozen=True, kw_only=True, slots=True)
class DrillResult:
    """Result of one drill."""

    scenario: Scenario
    finding: Finding
    injected: str = ""
    """Fault and its moment; for a skipped drill the reason."""
    remedy: str = ""
    """Advice of the job's report; empty for none."""
    seconds: float = 0.0
    runs: Sequence[DrillRun] = ()
    advice: Sequence[str] = ()

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON."""
        finding = self.finding
        return {
            "drill": self.scenario.name,
            "verdict": finding.verdict.value,
            "fine": finding.verdict.is_fine,
            "injected": self.injected,
            "seen": finding.report,
            "remedy": self.remedy or None,
            "compared_by": finding.compared or None,
            "differing": list(finding.differing),
            "steps_lost": finding.steps_lost,
            "seconds": round(self.seconds, 1),
            "rerun": finding.rerun,
            "runs": [run.run for run in self.runs],
            "change": list(self.advice),
        }


@dataclass(frozen=True, kw_only=True, slots=True)
class Scorecard:
    """Results of all drills of a job."""

    job: str
    folder: str
    """Data folder of its runs."""
    reference: DrillRun
    reference_seconds: float
    results: Sequence[DrillResult]
    advice: Sequence[str] = ()
    """Changes that do not depend on the drill."""

    @property
    def is_fine(self) -> bool:
        """True if every drill ran and the job recovers or names the cause each time."""
        return all(result.finding.verdict.is_fine for result in self.results)

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON for `--json` and for the file beside the runs."""
        reference = self.reference
        return {
            "job": self.job,
            "ok": self.is_fine,
            "reference": {
                "run": reference.run,
                "seconds": round(self.reference_seconds, 1),
                "steps": reference.history.last_step,
                "compared_by": reference.trained.by or None,
            },
            "drills": [result.to_json() for result in self.results],
            "change": list(self.advice),
            "data_dir": self.folder,
        }


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


def write_scorecard(folder: Path, text: str) -> None:
    """Write the scorecard beside the runs. May raise StorageError."""
    with storing(folder):
        replace_text(folder / SCORECARD, text)
