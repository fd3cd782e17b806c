"""Failed trials of a sweep by cause."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from cloudtrain.diagnosis.failure import Diagnosis
from cloudtrain.diagnosis.run_failure import diagnose_run
from cloudtrain.errors import RunNotFound
from cloudtrain.runs.state import RunState
from cloudtrain.sweeps.state import Trial
from cloudtrain.sweeps.sweep import Sweep


@dataclass(frozen=True, kw_only=True, slots=True)
class FailedTrials:
    """Trials that failed for the same reason."""

    diagnosis: Diagnosis
    """Diagnosis of the first one."""
    trials: tuple[int, ...]
    runs: tuple[str, ...]
    """Latest run of each."""

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON for `--json`."""
        return {
            "trials": list(self.trials),
            "runs": list(self.runs),
            "failure": self.diagnosis.to_json(),
        }


def failed_trials(sweep: Sweep) -> list[FailedTrials]:
    """Return the failed trials by cause, the most frequent first.

    Raise StorageError if a run cannot be read.
    """
    status = sweep.status()
    groups: dict[str, list[tuple[Trial, Diagnosis]]] = {}
    for trial in status.trials:
        if trial.state != "failed":
            continue
        try:
            run = sweep.run_of(trial)
        except RunNotFound:  # it was never started
            groups.setdefault(trial.reason, []).append(
                (trial, Diagnosis(cause=trial.reason, confidence="none"))
            )
            continue
        state = run.cached_status()
        diagnosis = diagnose_run(run.folder, state)
        groups.setdefault(_key(diagnosis, state), []).append((trial, diagnosis))
    ordered = sorted(groups.values(), key=lambda group: (-len(group), group[0][0].number))
    return [_together(group) for group in ordered]


def _key(diagnosis: Diagnosis, state: RunState) -> str:
    """Return a key that failures of one cause share, whatever numbers their messages contain."""
    if diagnosis.rule and not diagnosis.rule.is_consequence:
        return diagnosis.rule.name
    cause = state.error
    return f"{cause.exception} at {cause.file}:{cause.line}" if cause else diagnosis.cause


def _together(group: Sequence[tuple[Trial, Diagnosis]]) -> FailedTrials:
    trials = [trial for trial, _ in group]
    return FailedTrials(
        diagnosis=group[0][1],
        trials=tuple(trial.number for trial in trials),
        runs=tuple(trial.run for trial in trials),
    )
