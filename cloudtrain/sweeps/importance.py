"""Importance of settings for a metric, by fANOVA."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec

from cloudtrain.extras import install_command
from cloudtrain.sweeps.optuna_sampler import distributions_of, import_optuna, optuna_values
from cloudtrain.sweeps.state import SweepState, Trial

MIN_TRIALS = 4
"""Minimum number of trials with different values for an importance."""

Sample = tuple[Trial, float]


@dataclass(frozen=True, slots=True)
class Importance:
    """Importance of each setting."""

    shares: Mapping[str, float]
    """Shares, 0 to 1, the most important setting first; empty if unknown."""
    method: str
    """Method of the shares, or the reason why they are unknown."""


def importance(state: SweepState) -> Importance:
    """Return the importance of the settings that a sweep varies, by fANOVA.

    With rungs, all trials are compared after the same number of reports.
    """
    samples, values = _samples(state)
    if len(samples) < MIN_TRIALS or len({value for _, value in samples}) < 2:
        return Importance({}, f"Too few trials with different values ({len(samples)})")
    if find_spec("optuna") is None or find_spec("sklearn") is None:
        return Importance(
            {}, f"fANOVA needs Optuna and scikit-learn: {install_command('sweeps')} scikit-learn"
        )

    shares = _fanova(state, samples)
    by_importance = dict(sorted(shares.items(), key=lambda item: -item[1]))
    method = "fANOVA: the share of the variance that a setting explains by itself and with others"
    return Importance(by_importance, f"{method}; from {values} of {len(samples)} trials")


def _samples(state: SweepState) -> tuple[Sequence[Sample], str]:
    """Return trials with comparable values, and the name of these values."""
    for rung, values in reversed(list(zip(state.definition.rungs, state.rungs, strict=True))):
        samples = []
        for number, value in values.items():
            if math.isfinite(value):
                samples.append((state.trials[number], value))

        if 2 * len(samples) >= len(state.trials) and len(samples) >= MIN_TRIALS:
            return samples, f"the values at report {rung}"

    ended = []
    for trial in state.trials:
        last = trial.value
        if trial.state == "completed" and last is not None and math.isfinite(last):
            ended.append((trial, last))

    return ended, "the last values"


def _fanova(state: SweepState, samples: Sequence[Sample]) -> Mapping[str, float]:
    """Return shares that sum to 1 (Hutter et al., ICML 2014)."""
    optuna = import_optuna("fANOVA")
    study = optuna.create_study(direction=state.definition.goal)
    distributions = distributions_of(state.definition)
    for trial, value in samples:
        params = optuna_values(state.definition, trial.parameters)
        study.add_trial(
            optuna.trial.create_trial(params=params, distributions=distributions, value=value)
        )

    evaluator = optuna.importance.FanovaImportanceEvaluator(seed=0)
    shares = optuna.importance.get_param_importances(study, evaluator=evaluator)
    return {key: float(shares.get(key, 0.0)) for key in state.definition.space}
