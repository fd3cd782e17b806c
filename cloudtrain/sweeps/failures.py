"""Causes of failed trials of a sweep, and the settings that differ from other trials."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cloudtrain.diagnosis.failure import Diagnosis
from cloudtrain.diagnosis.run_failure import diagnose_run
from cloudtrain.errors import RunNotFound
from cloudtrain.runs.state import RunState
from cloudtrain.spec.search_space import Scalar
from cloudtrain.sweeps.state import IN_FLIGHT, Trial
from cloudtrain.sweeps.sweep import Sweep

MIN_TRIALS = 2
"""Least number of failed trials with a common setting."""


@dataclass(frozen=True, kw_only=True, slots=True)
class FailedTrials:
    """Trials that failed for the same reason."""

    diagnosis: Diagnosis
    """Diagnosis of the first one."""
    trials: tuple[int, ...]
    runs: tuple[str, ...]
    """Latest run of each."""
    set_apart_by: tuple[str, ...]
    """Differences of every failed trial from all successful trials; often empty.

    Example: `batch_size: 512 or more (others: up to 256)`.
    """

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON for `--json`."""
        return {
            "trials": list(self.trials),
            "runs": list(self.runs),
            "set_apart_by": list(self.set_apart_by),
            "failure": self.diagnosis.to_json(),
        }


def failed_trials(sweep: Sweep) -> list[FailedTrials]:
    """Return the failed trials by cause, the most frequent first.

    Raise StorageError if a run cannot be read.
    """
    status = sweep.status()
    successful = [
        trial.parameters
        for trial in status.trials
        if trial.state not in (*IN_FLIGHT, "failed") and trial.runs
    ]
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
    return [_together(group, successful) for group in ordered]


def _key(diagnosis: Diagnosis, state: RunState) -> str:
    """Return a key that failures of one cause share, whatever numbers their messages contain."""
    if diagnosis.rule and not diagnosis.rule.is_consequence:
        return diagnosis.rule.name
    cause = state.error
    return f"{cause.exception} at {cause.file}:{cause.line}" if cause else diagnosis.cause


def _together(
    group: Sequence[tuple[Trial, Diagnosis]], successful: Sequence[Mapping[str, Scalar]]
) -> FailedTrials:
    trials = [trial for trial, _ in group]
    return FailedTrials(
        diagnosis=group[0][1],
        trials=tuple(trial.number for trial in trials),
        runs=tuple(trial.run for trial in trials),
        set_apart_by=tuple(what_sets_apart([trial.parameters for trial in trials], successful)),
    )


def what_sets_apart(
    failed: Sequence[Mapping[str, Scalar]], successful: Sequence[Mapping[str, Scalar]]
) -> list[str]:
    """Return a text for each setting that separates failed trials from all other trials.

    Empty for fewer than two failed trials or without other trials: any difference may be chance.
    """
    if len(failed) < MIN_TRIALS or not successful:
        return []
    differences = []
    for key in failed[0]:
        failed_values = [parameters[key] for parameters in failed if key in parameters]
        good_values = [parameters[key] for parameters in successful if key in parameters]
        if len(failed_values) < len(failed) or not good_values:
            continue
        text = _difference(failed_values, good_values)
        if text:
            differences.append(f"{key}: {text}")
    return differences


def _difference(values: Sequence[Scalar], good_values: Sequence[Scalar]) -> str:
    """Return the difference of all failed values from all good values; empty for an overlap."""
    numbers = _numbers(values)
    other_numbers = _numbers(good_values)
    if numbers and other_numbers:
        if min(numbers) > max(other_numbers):
            return f"{min(numbers):g} or more (others: up to {max(other_numbers):g})"
        if max(numbers) < min(other_numbers):
            return f"{max(numbers):g} or less (others: from {min(other_numbers):g})"
        return ""
    if set(values) & set(good_values):
        return ""
    return f"{_listed(values)} (others: {_listed(good_values)})"


def _numbers(values: Sequence[Scalar]) -> list[float]:
    """Return the values as numbers; empty if one is not a number."""
    numbers = [
        value for value in values if isinstance(value, int | float) and not isinstance(value, bool)
    ]
    return [float(number) for number in numbers] if len(numbers) == len(values) else []


def _listed(values: Sequence[Scalar]) -> str:
    return ", ".join(sorted({str(value) for value in values}))
