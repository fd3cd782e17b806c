"""Trials of an earlier sweep, from which a new one learns before its own first trial."""

from __future__ import annotations

import math

from cloudtrain.errors import UsageError
from cloudtrain.sweeps.definition import Definition, EarlierTrial
from cloudtrain.sweeps.state import SweepState, Trial


def earlier_trials(state: SweepState, definition: Definition) -> tuple[EarlierTrial, ...]:
    """Return the ended trials of a sweep whose values are in another one's space.

    Those from which it learnt itself come first. UsageError if the objective differs, or no trial
    fits.
    """
    old = state.definition
    if (old.metric, old.goal) != (definition.metric, definition.goal):
        message = f"sweep {old.sweep_id} has another objective: {old.metric}, {old.goal}"
        raise UsageError(message, hint="learn_from: a sweep for the same metric and goal")
    ended = [trial for trial in state.trials if trial.state in ("completed", "pruned", "failed")]
    trials = [
        *old.earlier,
        *(EarlierTrial(parameters=trial.parameters, value=_value(trial)) for trial in ended),
    ]
    fitting = tuple(trial for trial in trials if _fits(trial, definition))
    if not fitting:
        message = f"no trial of sweep {old.sweep_id} has values for all settings of this space"
        raise UsageError(
            message, hint="learn_from: a sweep with the same settings, or leave it out"
        )
    return fitting


def _value(trial: Trial) -> float | None:
    if trial.state == "failed" or trial.value is None or not math.isfinite(trial.value):
        return None
    return trial.value


def _fits(trial: EarlierTrial, definition: Definition) -> bool:
    space = definition.space
    if trial.parameters.keys() != space.keys():
        return False
    return all(space[key].contains(value) for key, value in trial.parameters.items())
