"""Values that Optuna suggests, from the earlier results."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from typing import Any

from cloudtrain.extras import importing
from cloudtrain.spec.search_space import Choice, Dimension, Integers, Normal, Scalar
from cloudtrain.sweeps.definition import Definition
from cloudtrain.sweeps.state import SweepState, Trial

Outcome = tuple[str, float | None]
"""State and value of a trial for Optuna."""


class OptunaSampler:
    """Suggester that learns from results of trials, with another seed for each trial.

    It keeps its trials for Optuna from one suggestion to the next; a new one begins with none, and
    suggests the same.
    """

    def __init__(self, definition: Definition) -> None:
        self._optuna = import_optuna("the sampler tpe")
        self._definition = definition
        self._distributions = distributions_of(definition)
        self._kept: dict[int, tuple[Mapping[str, Scalar], Outcome, Any]] = {}
        """Parameters, outcome and trial for Optuna, by number."""

    def suggest(self, state: SweepState, draw: int = 0) -> Mapping[str, Scalar]:
        """Return a suggestion from the results of all earlier trials."""
        # Not at the top: most sweeps do without Optuna.
        from cloudtrain.sweeps.optuna_study import ask

        # A hash: generators with similar seeds begin with similar values.
        text = f"{self._definition.seed}:{len(state.trials)}:{draw}"
        seed = int.from_bytes(hashlib.sha256(text.encode()).digest()[:4])
        earlier = [self._frozen(trial) for trial in state.trials]
        suggested = ask(earlier, self._distributions, goal=self._definition.goal, seed=seed)
        space = self._definition.space

        return {key: _value(item, suggested[key]) for key, item in space.items()}

    def _frozen(self, trial: Trial) -> Any:
        """Return a trial for Optuna: that suggestion itself, if it has the same outcome."""
        outcome = self._outcome(trial)
        stored = self._kept.get(trial.number)
        if stored is not None and stored[0] is trial.parameters and stored[1] == outcome:
            return stored[2]

        name, value = outcome
        frozen = self._optuna.trial.create_trial(
            state=self._optuna.trial.TrialState[name],
            value=value,
            params=optuna_values(self._definition, trial.parameters),
            distributions=self._distributions,
        )
        frozen.number = trial.number + 1
        self._kept[trial.number] = trial.parameters, outcome, frozen

        return frozen

    def _outcome(self, trial: Trial) -> Outcome:
        """Return the outcome of a trial for Optuna.

        With early stopping the value at the last rung counts, also while the trial runs or waits
        for its promotion: as a pruned trial it would rank behind all longer trials, good or bad.
        Running trials without a value keep the next suggestion at a distance. A failed trial, or
        one without a finite result, is pruned without a value: TPE ranks it last. Optuna ignores
        trials in the state FAIL, and would suggest similar values again.
        """
        value = trial.value
        if trial.state not in ("completed", "pruned"):
            value = self._value_at_last_rung(trial)

        if trial.state == "failed" or (value is not None and not math.isfinite(value)):
            return "PRUNED", None
        if trial.state == "stopped":
            return "FAIL", None
        if value is not None:
            return "COMPLETE", value
        if trial.state == "completed":
            return "PRUNED", None
        if trial.state in ("waiting", "running"):
            return "RUNNING", None

        return "FAIL", None

    def _value_at_last_rung(self, trial: Trial) -> float | None:
        """Return the value at the last rung that a trial has reached; None before the first."""
        passed = [rung for rung in self._definition.rungs if rung <= trial.reports]
        if not passed:
            return None

        return trial.curve[max(passed) - 1]


def import_optuna(user: str) -> Any:
    """Return the module. Raise UsageError, which names what needs it, if it is not installed."""
    with importing("sweeps", f"{user} needs Optuna"):
        import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    return optuna


def distributions_of(definition: Definition) -> dict[str, Any]:
    """Return the space of a sweep as Optuna's distributions."""
    return {key: _distribution(item) for key, item in definition.space.items()}


def _distribution(item: Dimension) -> Any:
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    if isinstance(item, Choice):
        return CategoricalDistribution([_optuna_value(item, value) for value in item.values])
    if isinstance(item, Integers):
        return IntDistribution(item.low, item.high, log=item.log, step=item.step)
    if isinstance(item, Normal):
        return FloatDistribution(0.0, 1.0)
    return FloatDistribution(item.low, item.high, log=item.log)


def optuna_values(definition: Definition, parameters: Mapping[str, Scalar]) -> dict[str, Scalar]:
    """Return the values of a trial in these distributions."""
    space = definition.space
    return {key: _optuna_value(space[key], parameters[key]) for key in space}


def _optuna_value(item: Dimension, value: Scalar) -> Scalar:
    """Return a value for Optuna: text if 1 and true are choices, a part of a normal distribution."""
    if isinstance(item, Normal):
        return item.part_below(float(value))
    if isinstance(item, Choice) and len(set(item.values)) < len(item.values):
        return repr(value)
    return value


def _value(item: Dimension, suggested: Any) -> Scalar:
    """Return the value of a setting that `_optuna_value` wrote for Optuna."""
    if isinstance(item, Choice):
        return next(value for value in item.values if _optuna_value(item, value) == suggested)
    if isinstance(item, Normal):
        return item.value_at(suggested)
    if isinstance(item, Integers):
        return int(suggested)

    return float(suggested)
