"""Suggestions by Optuna (TPE, Gaussian processes) from the state of the sweep alone.

For speed, reuse the previous study if rebuilding it would give the same one.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from cloudtrain.errors import UsageError
from cloudtrain.spec.search_space import Choice, Dimension, Integers, Scalar
from cloudtrain.sweeps.definition import Definition, EarlierTrial
from cloudtrain.sweeps.state import SweepState, Trial

if TYPE_CHECKING:
    import optuna

INSTALL = "pip install 'cloudtrain[sweeps]'"

StudyTrial = tuple[Mapping[str, Scalar], Mapping[str, Any]]
"""Trial in the study of Optuna: values, state and objective."""


class OptunaSampler:
    """Suggester that learns from results of trials, with another seed for each trial."""

    def __init__(self, definition: Definition) -> None:
        self._optuna = _import_optuna(definition.sampler)
        self._definition = definition
        self._distributions = {
            key: self._distribution(item) for key, item in definition.space.items()
        }
        self._earlier = [self._earlier_study_trial(trial) for trial in definition.earlier]
        self._running = {"state": self._optuna.trial.TrialState.RUNNING}
        self._study: optuna.Study | None = None
        self._study_trials: list[StudyTrial] = []
        """Trials of the study."""
        self._numbers: list[int] = []
        """Optuna's number of each trial; unused suggestions have none here."""
        self._suggestion: optuna.trial.Trial | None = None
        """Latest suggestion."""

    def suggest(self, state: SweepState, draw: int = 0) -> Mapping[str, Scalar]:
        """Return a suggestion from the results of all earlier trials."""
        own_trials = [self._study_trial(trial) for trial in state.trials]
        trials = self._with_values([*self._earlier, *own_trials])
        study = self._study
        if study is None or not self._is_right(trials):
            study = self._optuna.create_study(direction=self._definition.goal)
            self._study = study
            self._study_trials = []
            self._numbers = []
            self._suggestion = None
        self._tell(study, trials)

        study.sampler = self._sampler(len(state.trials), draw)
        suggestion = study.ask(self._distributions)
        self._suggestion = suggestion
        space = self._definition.space
        return {key: _value(item, suggestion.params[key]) for key, item in space.items()}

    def _is_right(self, trials: Sequence[StudyTrial]) -> bool:
        """Return True if the study still matches the trials.

        Trials that ran when they were added may have changed. Optuna cannot change an ended trial:
        after its next rung such a trial needs a new study.
        """
        if len(self._study_trials) > len(trials):
            return False
        for old, new in zip(self._study_trials, trials, strict=False):
            was_running = old[0] == new[0] and old[1] == self._running
            if old != new and not was_running:
                return False
        return True

    def _tell(self, study: optuna.Study, trials: Sequence[StudyTrial]) -> None:
        """Update the study with the present results of all trials."""
        suggestion = self._suggestion
        if suggestion is not None:
            count = len(self._study_trials)
            new_point = trials[count][0] if len(trials) > count else None
            if new_point == suggestion.params:
                self._study_trials.append((new_point, self._running))
                self._numbers.append(suggestion.number)
            else:
                study.tell(suggestion, state=self._optuna.trial.TrialState.FAIL)

        for at, (number, old, new) in enumerate(
            zip(self._numbers, self._study_trials, trials, strict=False)
        ):
            if old != new:
                study.tell(number, new[1].get("value"), state=new[1]["state"])
                self._study_trials[at] = new

        first = len(study.get_trials(deepcopy=False))
        added = trials[len(self._study_trials) :]
        study.add_trials([self._frozen(trial) for trial in added])
        self._numbers += range(first, first + len(added))
        self._study_trials += added

    def _study_trial(self, trial: Trial) -> StudyTrial:
        """Return the trial as the sampler sees it."""
        space = self._definition.space
        point = {key: _internal(item, trial.parameters[key]) for key, item in space.items()}
        return point, self._outcome(trial)

    def _earlier_study_trial(self, trial: EarlierTrial) -> StudyTrial:
        states = self._optuna.trial.TrialState
        space = self._definition.space
        point = {key: _internal(item, trial.parameters[key]) for key, item in space.items()}
        if trial.value is None:
            return point, {"state": states.PRUNED}
        return point, {"state": states.COMPLETE, "value": trial.value}

    def _frozen(self, trial: StudyTrial) -> optuna.trial.FrozenTrial:
        parameters, outcome = trial
        frozen: optuna.trial.FrozenTrial = self._optuna.trial.create_trial(
            **outcome, params=dict(parameters), distributions=self._distributions
        )
        return frozen

    def _outcome(self, trial: Trial) -> dict[str, Any]:
        """Return the state and value of a trial for Optuna's study.

        With early stopping the value at the last rung counts, also while the trial runs or waits
        for its promotion: as a pruned trial it would rank behind all longer trials, good or bad.
        Running trials without a value keep the next suggestion at a distance. A failed trial, or
        one without a finite result, is pruned without a value: TPE ranks it last. Optuna ignores
        trials in the state FAIL, and would suggest similar values again.
        """
        states = self._optuna.trial.TrialState
        report = max((rung for rung in self._definition.rungs if rung <= trial.reports), default=0)
        value = trial.value
        if trial.state not in ("completed", "pruned"):
            value = trial.curve[report - 1] if report else None
        if trial.state == "failed" or (value is not None and not math.isfinite(value)):
            return {"state": states.PRUNED}
        if trial.state == "stopped":
            return {"state": states.FAIL}
        if value is None:
            if trial.state == "completed":
                return {"state": states.PRUNED}
            return {
                "state": states.RUNNING if trial.state in ("waiting", "running") else states.FAIL
            }
        return {"state": states.COMPLETE, "value": value}

    def _with_values(self, trials: Sequence[StudyTrial]) -> list[StudyTrial]:
        """Return the trials, with the worst value for trials without a result.

        Only the Gaussian process needs this: it learns only from values.
        """
        states = self._optuna.trial.TrialState
        values = [outcome["value"] for _, outcome in trials if outcome["state"] == states.COMPLETE]
        if self._definition.sampler != "gp" or not values:
            return list(trials)
        worst = min(values) if self._definition.goal == "maximize" else max(values)
        lost = {"state": states.COMPLETE, "value": worst}
        return [
            (point, lost if outcome["state"] == states.PRUNED else outcome)
            for point, outcome in trials
        ]

    def _sampler(self, number: int, draw: int) -> Any:
        # A hash: generators with similar seeds begin with similar values.
        text = f"{self._definition.seed}:{number}:{draw}"
        seed = int.from_bytes(hashlib.sha256(text.encode()).digest()[:4])
        if self._definition.sampler == "gp":
            return self._optuna.samplers.GPSampler(seed=seed)
        return self._optuna.samplers.TPESampler(seed=seed, constant_liar=True)

    def _distribution(self, item: Dimension) -> Any:
        kinds = self._optuna.distributions
        if isinstance(item, Choice):
            # By number: Optuna would mix up equal values, such as 1 and true.
            return kinds.CategoricalDistribution(range(len(item.values)))
        if isinstance(item, Integers):
            return kinds.IntDistribution(item.low, item.high, log=item.log, step=item.step)
        return kinds.FloatDistribution(item.low, item.high, log=item.log)


def _internal(item: Dimension, value: Scalar) -> Scalar:
    if not isinstance(item, Choice):
        return value
    return next(
        at for at, one in enumerate(item.values) if type(one) is type(value) and one == value
    )


def _value(item: Dimension, internal: float) -> Scalar:
    if isinstance(item, Choice):
        return item.values[int(internal)]
    return int(internal) if isinstance(item, Integers) else float(internal)


def _import_optuna(sampler: str) -> Any:
    try:
        import optuna
    except ImportError as error:
        raise UsageError(
            f"{sampler} is Optuna's, which is not installed ({error})", hint=INSTALL
        ) from None
    missing = [name for name in ("scipy", "torch") if sampler == "gp" and find_spec(name) is None]
    if missing:
        hint = "pip install 'cloudtrain[sweeps,train]'; or sampler: tpe"
        raise UsageError(
            f"Optuna's Gaussian processes need {' and '.join(missing)}, not installed", hint=hint
        )
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    return optuna
