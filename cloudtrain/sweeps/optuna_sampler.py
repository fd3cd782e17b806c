"""TPE and Gaussian processes, by Optuna. What they suggest depends on the state of the sweep alone.

The study of the suggestion before is gone on with where it has become the one that would be made
anew, which is faster.
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

Known = tuple[Mapping[str, Scalar], Mapping[str, Any]]
"""A trial in the study of Optuna: values, state and objective."""


class OptunaSampler:
    """Learns from what trials have reached. The sampler of each trial has a seed of its own."""

    def __init__(self, definition: Definition) -> None:
        self._optuna = _import_optuna(definition.sampler)
        self._definition = definition
        self._distributions = {
            key: self._distribution(item) for key, item in definition.space.items()
        }
        self._earlier = [self._known_earlier(trial) for trial in definition.earlier]
        self._running = {"state": self._optuna.trial.TrialState.RUNNING}
        self._study: optuna.Study | None = None
        self._told: list[Known] = []
        """Trials of the study."""
        self._numbers: list[int] = []
        """The number that each of them has there: that of a suggestion which became no trial is
        left out.
        """
        self._asked: optuna.trial.Trial | None = None
        """Latest suggestion."""

    def suggest(self, state: SweepState, draw: int = 0) -> Mapping[str, Scalar]:
        """Return a suggestion with knowledge of all earlier trials."""
        known = self._with_values([*self._earlier, *(self._known(trial) for trial in state.trials)])
        study = self._study
        if study is None or not self._is_right(known):
            study = self._study = self._optuna.create_study(direction=self._definition.goal)
            self._told = []
            self._numbers = []
            self._asked = None
        self._tell(study, known)
        study.sampler = self._sampler(len(state.trials), draw)
        self._asked = study.ask(self._distributions)
        return {
            key: _value(item, self._asked.params[key])
            for key, item in self._definition.space.items()
        }

    def _is_right(self, known: Sequence[Known]) -> bool:
        """Whether all that the study was told is so still, but for trials that went on then.

        What Optuna was told as ended stays as it is: a trial that has got to its next rung since is
        told anew.
        """
        return len(self._told) <= len(known) and all(
            one == other or (one[0] == other[0] and one[1] == self._running)
            for one, other in zip(self._told, known, strict=False)
        )

    def _tell(self, study: optuna.Study, known: Sequence[Known]) -> None:
        """Bring the study of some trials to what is known of all."""
        if (asked := self._asked) is not None:
            new = known[len(self._told)][0] if len(known) > len(self._told) else None
            if new == asked.params:
                self._told.append((new, self._running))
                self._numbers.append(asked.number)
            else:
                study.tell(asked, state=self._optuna.trial.TrialState.FAIL)
        for at, (number, told, now) in enumerate(
            zip(self._numbers, self._told, known, strict=False)
        ):
            if told != now:
                study.tell(number, now[1].get("value"), state=now[1]["state"])
                self._told[at] = now
        first = len(study.get_trials(deepcopy=False))
        added = known[len(self._told) :]
        study.add_trials([self._frozen(each) for each in added])
        self._numbers += range(first, first + len(added))
        self._told += added

    def _known(self, trial: Trial) -> Known:
        """Return the trial as the sampler sees it."""
        space = self._definition.space
        return {
            key: _internal(item, trial.parameters[key]) for key, item in space.items()
        }, self._outcome(trial)

    def _known_earlier(self, trial: EarlierTrial) -> Known:
        states = self._optuna.trial.TrialState
        space = self._definition.space
        point = {key: _internal(item, trial.parameters[key]) for key, item in space.items()}
        if trial.value is None:
            return point, {"state": states.PRUNED}
        return point, {"state": states.COMPLETE, "value": trial.value}

    def _frozen(self, known: Known) -> optuna.trial.FrozenTrial:
        parameters, outcome = known
        found: optuna.trial.FrozenTrial = self._optuna.trial.create_trial(
            **outcome, params=dict(parameters), distributions=self._distributions
        )
        return found

    def _outcome(self, trial: Trial) -> dict[str, Any]:
        """The state of a trial in Optuna's study, and its value there.

        With early stopping the value at the last rung counts, also while the trial goes on or waits
        for its promotion. Told as pruned, a trial would stand behind all that got further, which
        the first few did whatever they were. The rest that run count as no better than the others,
        so that the next one is not put beside them. A trial that failed, or has no number as its
        result, is pruned without a value: TPE ranks it behind all others. As FAIL it would be
        ignored, and values like its own tried again.
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

    def _with_values(self, known: Sequence[Known]) -> list[Known]:
        """Give trials without a result the worst value so far, where only trials with values are
        learnt from.
        """
        states = self._optuna.trial.TrialState
        values = [outcome["value"] for _, outcome in known if outcome["state"] == states.COMPLETE]
        if self._definition.sampler != "gp" or not values:
            return list(known)
        worst = min(values) if self._definition.goal == "maximize" else max(values)
        lost = {"state": states.COMPLETE, "value": worst}
        return [
            (point, lost if outcome["state"] == states.PRUNED else outcome)
            for point, outcome in known
        ]

    def _sampler(self, number: int, draw: int) -> Any:
        # A hash: generators whose seeds are near each other begin with values that are near each
        # other.
        text = f"{self._definition.seed}:{number}:{draw}"
        seed = int.from_bytes(hashlib.sha256(text.encode()).digest()[:4])
        if self._definition.sampler == "gp":
            return self._optuna.samplers.GPSampler(seed=seed)
        return self._optuna.samplers.TPESampler(seed=seed, constant_liar=True)

    def _distribution(self, item: Dimension) -> Any:
        kinds = self._optuna.distributions
        if isinstance(item, Choice):
            # By number: of values that are equal, such as 1 and true, Optuna would take the first.
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


def _value(item: Dimension, found: float) -> Scalar:
    if isinstance(item, Choice):
        return item.values[int(found)]
    return int(found) if isinstance(item, Integers) else float(found)


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
