"""What all drills of a job have shown, as a value."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from cloudtrain.submission.drills.scenario import Scenario
from cloudtrain.submission.drills.verdict import DrillRun, Finding, Verdict


@dataclass(frozen=True, kw_only=True, slots=True)
class DrillResult:
    """One drill."""

    scenario: Scenario
    finding: Finding
    injected: str = ""
    """What was done to the job, and when; for a drill that was skipped, why."""
    noticed_seconds: float | None = None
    """How long it took until the job's own report had it; None if it never had."""
    remedy: str = ""
    """What the job's own report says to do; empty for nothing."""
    seconds: float = 0.0
    runs: Sequence[DrillRun] = ()
    advice: Sequence[str] = ()

    def to_json(self) -> dict[str, Any]:
        """Plain JSON."""
        found = self.finding
        return {
            "drill": self.scenario.name,
            "verdict": found.verdict.value,
            "fine": found.verdict.is_fine,
            "injected": self.injected,
            "seen": found.seen,
            "noticed_seconds": self.noticed_seconds,
            "remedy": self.remedy or None,
            "compared_by": found.compared or None,
            "differing": list(found.differing),
            "steps_lost": found.steps_lost,
            "seconds": round(self.seconds, 1),
            "rerun": found.rerun,
            "runs": [run.run for run in self.runs],
            "change": list(self.advice),
            "expected": self.scenario.expected,
            "source": self.scenario.source,
        }


@dataclass(frozen=True, kw_only=True, slots=True)
class Scorecard:
    """All drills of a job."""

    job: str
    folder: str
    """The data folder in which its runs are."""
    reference: DrillRun
    reference_seconds: float
    results: Sequence[DrillResult]
    advice: Sequence[str] = ()
    """What to change, whatever the drill."""
    remarks: Sequence[str] = ()
    """What was different from the job as it will run."""
    interrupted: bool = False
    left: Sequence[str] = ()
    """The drills that were not done, where it was interrupted."""

    @property
    def is_fine(self) -> bool:
        """Whether every drill was done, and the job recovers from all of it or says what was wrong."""
        return not self.interrupted and all(
            result.finding.verdict.is_fine for result in self.results
        )

    @property
    def runs_to_remove(self) -> list[str]:
        """Those of which nothing is to be learnt: of drills after which the parameters were the
        same.
        """
        done = [
            run.run
            for each in self.results
            if each.finding.verdict is Verdict.SAME
            for run in each.runs
        ]
        return (
            [self.reference.run, *done]
            if len(done) == sum(len(each.runs) for each in self.results)
            else done
        )

    def to_json(self) -> dict[str, Any]:
        """Plain JSON, for `--json` and for the file beside the runs."""
        reference = self.reference
        return {
            "job": self.job,
            "ok": self.is_fine,
            "interrupted": self.interrupted,
            "reference": {
                "run": reference.run,
                "seconds": round(self.reference_seconds, 1),
                "steps": reference.history.last_step,
                "compared_by": reference.trained.by or None,
            },
            "drills": [result.to_json() for result in self.results],
            "change": list(self.advice),
            "remarks": list(self.remarks),
            "data_dir": self.folder,
        }
