"""Results of all drills of a job, as a value."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from cloudtrain.submission.drills.scenario import Scenario
from cloudtrain.submission.drills.verdict import DrillRun, Finding, Verdict


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
    interrupted: bool = False
    skipped: Sequence[str] = ()
    """Drills that were not run because of an interrupt."""

    @property
    def is_fine(self) -> bool:
        """True if every drill ran and the job recovers or names the cause each time."""
        return not self.interrupted and all(
            result.finding.verdict.is_fine for result in self.results
        )

    @property
    def runs_to_remove(self) -> list[str]:
        """Runs without any information: of drills that recovered to the same parameters."""
        removable = [
            run.run
            for result in self.results
            if result.finding.verdict is Verdict.SAME
            for run in result.runs
        ]
        return (
            [self.reference.run, *removable]
            if len(removable) == sum(len(result.runs) for result in self.results)
            else removable
        )

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON for `--json` and for the file beside the runs."""
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
            "data_dir": self.folder,
        }
