"""TPE and Gaussian processes, by Optuna. What they suggest depends on the state of the sweep alone.

The study of the suggestion before is gone on with where it has become the one that would be made anew, which is faster.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from cloudtrain.errors import UsageError
from cloudtrain.spec.search_space import Choice, Dimension, Integers, Scalar
from cloudtrain.sweeps.definition import Definition
from cloudtrain.sweeps.state import SweepState, Trial

if TYPE_CHECKING:
    import optuna

INSTALL = "pip install 'cloudtrain[sweeps]'"

Known = tuple[Mapping[str, Scalar], Mapping[str, Any]]
"""What Optuna knows of a trial: its values, and its state with the objective."""


class OptunaSampler:
    """Learns from what trials have reached. The sampler of each trial has a seed of its own."""

    def __init__(self, definition: Definition) -> None:
        self._optuna = _import_optuna(definition.sampler)
        self._definition = definition
        self._distributions = {key: self._distribution(item) for key, item in definition.space.items()}
        self._study: optuna.Study | None = None
        self._told: Sequence[Known] = []
        """What the study had been told of each trial before it was last asked."""

    def suggest(self, state: SweepState, draw: int = 0) -> Mapping[str, Scalar]:
        """What the sampler suggests, knowing all trials before."""
        known = [self._known(trial) for trial in state.trials]
        study = self._study = self._continued(known) or self._made_anew(known)
        self._told = known
        study.sampler = self._sampler(len(known), draw)
        found = study.ask(self._distributions).params
        return {key: _value(item, found[key]) for key, item in self._definition.space.items()}

    def _made_anew(self, known: Sequence[Known]) -> optuna.Study:
        study: optuna.Study = self._optuna.create_study(direction=self._definition.goal)
        study.add_trials([self._frozen(each) for each in known])
        return study

    def _continued(self, known: Sequence[Known]) -> optuna.Study | None:
        """The study of the suggestion before, told what is new; None where it has told Optuna something else.

        It was right about a trial that went on then, and has ended. What Optuna was told as ended stays as it is: of a
        trial that has got to its next rung since, it would have to be told again.
        """
        study, told = self._study, self._told
        if study is None or len(study.get_trials(deepcopy=False)) > len(known):
            return None
        running = self._optuna.trial.TrialState.RUNNING
        asked = [(self._asked(trial), {"state": running}) for trial in study.get_trials(deepcopy=False)[len(told) :]]
        before = [*told, *asked]
        changed = [at for at, (one, other) in enumerate(zip(before, known, strict=False)) if one != other]
        if any(before[at][0] != known[at][0] or before[at][1]["state"] != running for at in changed):
            return None
        for at in changed:
            outcome = known[at][1]
            study.tell(at, outcome.get("value"), state=outcome["state"])
        study.add_trials([self._frozen(each) for each in known[len(before) :]])
        return study

    def _asked(self, trial: optuna.trial.FrozenTrial) -> Mapping[str, Scalar]:
        return {key: trial.params[key] for key in self._definition.space}

    def _known(self, trial: Trial) -> Known:
        """What the sampler is to know of a trial."""
        space = self._definition.space
        return {key: _internal(item, trial.parameters[key]) for key, item in space.items()}, self._outcome(trial)

    def _frozen(self, known: Known) -> optuna.trial.FrozenTrial:
        parameters, outcome = known
        found: optuna.trial.FrozenTrial = self._optuna.trial.create_trial(
            **outcome, params=dict(parameters), distributions=self._distributions
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

    def _sampler(self, number: int, draw: int) -> Any:
        seed = (self._definition.seed * 1_000_003 + number + draw * 7_368_787) % 2**32
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
