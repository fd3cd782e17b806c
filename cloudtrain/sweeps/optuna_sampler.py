"""TPE and Gaussian processes, by Optuna. Its study is made anew for every suggestion, from the state of the sweep."""

from __future__ import annotations

import math
from collections.abc import Mapping
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from cloudtrain.errors import UsageError
from cloudtrain.spec.search_space import Choice, Dimension, Integers, Scalar
from cloudtrain.sweeps.definition import Definition
from cloudtrain.sweeps.state import SweepState, Trial

if TYPE_CHECKING:
    import optuna

INSTALL = "pip install 'cloudtrain[sweeps]'"


class OptunaSampler:
    """Learns from what trials have reached. The sampler of each trial has a seed of its own."""

    def __init__(self, definition: Definition) -> None:
        self._optuna = _import_optuna(definition.sampler)
        self._definition = definition
        self._distributions = {key: self._distribution(item) for key, item in definition.space.items()}

    def suggest(self, state: SweepState) -> Mapping[str, Scalar]:
        """What the sampler suggests, knowing all trials before."""
        sampler = self._sampler(len(state.trials))
        study = self._optuna.create_study(direction=self._definition.goal, sampler=sampler)
        study.add_trials([self._known(trial) for trial in state.trials])
        found = study.ask(self._distributions).params
        return {key: _value(item, found[key]) for key, item in self._definition.space.items()}

    def _known(self, trial: Trial) -> optuna.trial.FrozenTrial:
        """What the sampler is to know of a trial."""
        found: optuna.trial.FrozenTrial = self._optuna.trial.create_trial(
            **self._outcome(trial),
            params={key: _internal(item, trial.parameters[key]) for key, item in self._definition.space.items()},
            distributions=self._distributions,
        )
        return found

    def _outcome(self, trial: Trial) -> dict[str, Any]:
        """The state of a trial in Optuna's study, and its value there.

        With early stopping the value at the last rung counts, also while the trial goes on or waits for its promotion.
        Told as pruned, a trial would stand behind all that got further, which the first few did whatever they were.
        The rest that run count as no better than the others, so that the next one is not put beside them.
        """
        states = self._optuna.trial.TrialState
        report = max((rung for rung in self._definition.rungs if rung <= trial.reports), default=0)
        value = trial.value
        if trial.state not in ("completed", "pruned"):
            value = trial.curve[report - 1] if report else None
        if trial.state in ("failed", "stopped") or (value is not None and not math.isfinite(value)):
            return {"state": states.FAIL}
        if value is None:
            return {"state": states.RUNNING if trial.state in ("waiting", "running") else states.FAIL}
        return {"state": states.COMPLETE, "value": value}

    def _sampler(self, number: int) -> Any:
        seed = (self._definition.seed * 1_000_003 + number) % 2**32
        if self._definition.sampler == "gp":
            return self._optuna.samplers.GPSampler(seed=seed)
        return self._optuna.samplers.TPESampler(seed=seed, constant_liar=True)

    def _distribution(self, item: Dimension) -> Any:
        kinds = self._optuna.distributions
        if isinstance(item, Choice):
            # By number: of values that are equal, such as 1 and true, Optuna would take the first.
            return kinds.CategoricalDistribution(range(len(item.values)))
        if isinstance(item, Integers):
            return kinds.IntDistribution(item.low, item.high, log=item.log)
        return kinds.FloatDistribution(item.low, item.high, log=item.log)


def _internal(item: Dimension, value: Scalar) -> Scalar:
    if not isinstance(item, Choice):
        return value
    return next(at for at, one in enumerate(item.values) if type(one) is type(value) and one == value)


def _value(item: Dimension, found: float) -> Scalar:
    if isinstance(item, Choice):
        return item.values[int(found)]
    return int(found) if isinstance(item, Integers) else float(found)


def _import_optuna(sampler: str) -> Any:
    try:
        import optuna
    except ImportError as error:
        raise UsageError(f"{sampler} is Optuna's, which is not installed ({error})", hint=INSTALL) from None
    missing = [name for name in ("scipy", "torch") if sampler == "gp" and find_spec(name) is None]
    if missing:
        hint = "pip install 'cloudtrain[sweeps,train]'; or sampler: tpe"
        raise UsageError(f"Optuna's Gaussian processes need {' and '.join(missing)}, not installed", hint=hint)
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    return optuna
