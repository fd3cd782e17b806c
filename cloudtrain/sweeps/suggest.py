"""Suggest the values of the next trial, and weigh the settings by their importance.

A suggestion depends on the journal alone: on the seed, the number of the trial, and the events
before it. The successor of a killed driver continues the same sequence.
"""

from __future__ import annotations

import hashlib
import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Protocol

from cloudtrain.errors import UsageError
from cloudtrain.spec.search_space import (
    Choice,
    Dimension,
    Integers,
    Normal,
    Scalar,
    Uniform,
    points_of,
)
from cloudtrain.sweeps.definition import Definition
from cloudtrain.sweeps.state import SweepState, Trial

if TYPE_CHECKING:
    import optuna

    from cloudtrain.sweeps.definition import Definition
    from cloudtrain.sweeps.state import SweepState


DRAWS = 4
"""Attempts of a sampler to suggest a new point, before a random unused point is drawn."""


class Suggester(Protocol):
    """Chooses the values of trials from the state alone."""

    def suggest(self, state: SweepState, draw: int = 0) -> Mapping[str, Scalar]:
        """Return the values of the next trial; another `draw` gives other values."""


def suggester_of(definition: Definition) -> Suggester:
    """Return the suggester of a sweep. In a finite space it suggests no point twice.

    Raise UsageError if Optuna is needed and not installed.
    """
    if definition.sampler == "grid":
        return Grid(definition.space)
    suggester: Suggester = (
        RandomValues(definition) if definition.sampler == "random" else OptunaSampler(definition)
    )
    if points_of(definition.space) is not None:
        suggester = Distinct(suggester, definition)
    return KnownPoints(suggester, definition.try_first) if definition.try_first else suggester


class Grid:
    """Suggester of every point, in order; the last setting varies fastest."""

    def __init__(self, space: Mapping[str, Dimension]) -> None:
        self._space = space

    def suggest(self, state: SweepState, draw: int = 0) -> Mapping[str, Scalar]:  # noqa: ARG002
        """Return the next point."""
        return point_at(self._space, len(state.trials))


def point_at(space: Mapping[str, Dimension], number: int) -> Mapping[str, Scalar]:
    """Return a point by number, from 0. Raise ValueError for an infinite space."""
    point: dict[str, Scalar] = {}
    for key in reversed(list(space)):
        values = grid_values(space[key])
        number, at = divmod(number, len(values))
        point[key] = values[at]

    return {key: point[key] for key in space}


def number_of(space: Mapping[str, Dimension], point: Mapping[str, Scalar]) -> int:
    """Return the number of a point. Raise ValueError if the space does not contain it."""
    number = 0
    for key, dimension in space.items():
        values = grid_values(dimension)
        value = point[key]

        if isinstance(values, range):
            at = values.index(int(value))
        else:  # with types: 1 and true are equal
            at = [(type(one), one) for one in values].index((type(value), value))

        number = number * len(values) + at

    return number


def grid_values(dimension: Dimension) -> Sequence[Scalar]:
    """Return the values of a setting, in order. Raise ValueError for a real range."""
    if isinstance(dimension, (Uniform, Normal)):
        raise ValueError(f"{dimension.text()} has infinitely many values")
    return dimension.values


class Distinct:
    """Suggestions of another suggester, each point once.

    Repetitions would give the same result: to try several seeds, make the seed a setting.
    """

    def __init__(self, suggester: Suggester, definition: Definition) -> None:
        self._suggester = suggester
        self._space = definition.space
        self._seed = definition.seed
        self._size = points_of(definition.space) or 0

    def suggest(self, state: SweepState, draw: int = 0) -> Mapping[str, Scalar]:
        """Return a new point; `schedule` ends the sweep before they run out."""
        identities = {_identity(trial.parameters) for trial in state.trials}
        for attempt in range(draw, draw + DRAWS):
            point = self._suggester.suggest(state, attempt)
            if _identity(point) not in identities:
                return point

        return self._one_left(state)

    def _one_left(self, state: SweepState) -> Mapping[str, Scalar]:
        numbers = {number_of(self._space, trial.parameters) for trial in state.trials}
        # The sequence of `random.random` for a seed is the same in every version of Python.
        part = random.Random(f"{self._seed}:{len(state.trials)}:left").random()
        at = int(part * max(1, self._size - len(numbers)))
        for number in sorted(numbers):
            at += number <= at

        return point_at(self._space, at % self._size)


def _identity(point: Mapping[str, Scalar]) -> object:
    """Return what two equal points have in common; 1 and true are two values."""
    return frozenset((key, type(value), value) for key, value in point.items())


class KnownPoints:
    """Points from the user, then suggestions of another suggester.

    The other suggester also chooses settings that a point leaves out.
    """

    def __init__(self, suggester: Suggester, points: Sequence[Mapping[str, Scalar]]) -> None:
        self._suggester = suggester
        self._points = points

    def suggest(self, state: SweepState, draw: int = 0) -> Mapping[str, Scalar]:
        """Return the values of the next trial."""
        number = len(state.trials)
        if number >= len(self._points):
            return self._suggester.suggest(state, draw)
        point = self._points[number]
        space = state.definition.space
        if point.keys() != space.keys():
            point = {**self._suggester.suggest(state, draw), **point}
        return {key: _of_type(space[key], point[key]) for key in space}


def _of_type(dimension: Dimension, value: Scalar) -> Scalar:
    """Return a value as trials have it: 1 of a range of real numbers is 1.0."""
    return float(value) if isinstance(dimension, (Uniform, Normal)) else value


class RandomValues:
    """Random values that depend on the seed and the number of the trial alone."""

    def __init__(self, definition: Definition) -> None:
        self._space = definition.space
        self._seed = definition.seed

    def suggest(self, state: SweepState, draw: int = 0) -> Mapping[str, Scalar]:
        """Return the next point."""
        number = len(state.trials)
        # The sequence of `random.random` for a seed is the same in every version of Python.
        generator = random.Random(f"{self._seed}:{number}" + (f":{draw}" if draw else ""))
        return {
            key: value_at(dimension, generator.random()) for key, dimension in self._space.items()
        }


def value_at(dimension: Dimension, part: float) -> Scalar:
    """Return the value below which this part of a dimension is, from 0 to 1."""
    if isinstance(dimension, Choice):
        return dimension.values[int(part * len(dimension.values))]
    if isinstance(dimension, Normal):
        return dimension.value_at(part)
    if isinstance(dimension, Integers):
        if not dimension.log:
            number = min(int(part * dimension.size), dimension.size - 1)
            return dimension.low + number * dimension.step

        ends = math.log(dimension.low - 0.5), math.log(dimension.high + 0.5)
        rounded = round(_between(*ends, part, log=True))
        return min(max(rounded, dimension.low), dimension.high)

    ends = dimension.low, dimension.high
    if dimension.log:
        ends = math.log(dimension.low), math.log(dimension.high)
    return min(max(_between(*ends, part, log=dimension.log), dimension.low), dimension.high)


def _between(low: float, high: float, part: float, *, log: bool) -> float:
    value = low * (1.0 - part) + high * part
    return math.exp(value) if log else value


INSTALL = "pip install 'cloudtrain[sweeps]'"
MIN_TRIALS = 4
"""Minimum number of trials with different values for an importance."""

Sample = tuple[Trial, float]


class OptunaSampler:
    """Suggester that learns from results of trials, with another seed for each trial."""

    def __init__(self, definition: Definition) -> None:
        self._optuna = _import_optuna("the sampler tpe")
        self._definition = definition
        self._distributions = _distributions_of(definition)

    def suggest(self, state: SweepState, draw: int = 0) -> Mapping[str, Scalar]:
        """Return a suggestion from the results of all earlier trials."""
        # A hash: generators with similar seeds begin with similar values.
        text = f"{self._definition.seed}:{len(state.trials)}:{draw}"
        seed = int.from_bytes(hashlib.sha256(text.encode()).digest()[:4])
        sampler = self._optuna.samplers.TPESampler(seed=seed, constant_liar=True)
        study = self._optuna.create_study(direction=self._definition.goal, sampler=sampler)
        study.add_trials(
            [self._study_trial(*self._outcome(trial), trial.parameters) for trial in state.trials]
        )
        suggestion = study.ask(self._distributions)
        space = self._definition.space

        return {key: _value(item, suggestion.params[key]) for key, item in space.items()}

    def _study_trial(
        self, name: str, value: float | None, parameters: Mapping[str, Scalar]
    ) -> optuna.trial.FrozenTrial:
        """Return a trial as the sampler sees it."""
        frozen: optuna.trial.FrozenTrial = self._optuna.trial.create_trial(
            state=self._optuna.trial.TrialState[name],
            value=value,
            params=_optuna_values(self._definition, parameters),
            distributions=self._distributions,
        )
        return frozen

    def _outcome(self, trial: Trial) -> tuple[str, float | None]:
        """Return the state and value of a trial for Optuna's study.

        With early stopping the value at the last rung counts, also while the trial runs or waits
        for its promotion: as a pruned trial it would rank behind all longer trials, good or bad.
        Running trials without a value keep the next suggestion at a distance. A failed trial, or
        one without a finite result, is pruned without a value: TPE ranks it last. Optuna ignores
        trials in the state FAIL, and would suggest similar values again.
        """
        report = max((rung for rung in self._definition.rungs if rung <= trial.reports), default=0)
        value = trial.value
        if trial.state not in ("completed", "pruned"):
            value = trial.curve[report - 1] if report else None
        if trial.state == "failed" or (value is not None and not math.isfinite(value)):
            return "PRUNED", None
        if trial.state == "stopped":
            return "FAIL", None
        if value is not None:
            return "COMPLETE", value
        if trial.state == "completed":
            return "PRUNED", None
        return ("RUNNING" if trial.state in ("waiting", "running") else "FAIL"), None


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
        return Importance({}, f"fANOVA needs Optuna and scikit-learn: {INSTALL} scikit-learn")

    shares = _fanova(state, samples)
    by_importance = dict(sorted(shares.items(), key=lambda item: -item[1]))
    method = "fANOVA: the share of the variance that a setting explains by itself and with others"
    return Importance(by_importance, f"{method}; from {values} of {len(samples)} trials")


def _samples(state: SweepState) -> tuple[Sequence[Sample], str]:
    """Return trials with comparable values, and the name of these values."""
    for rung, values in reversed(list(zip(state.definition.rungs, state.rungs, strict=True))):
        samples = [
            (state.trials[number], value)
            for number, value in values.items()
            if math.isfinite(value)
        ]
        if 2 * len(samples) >= len(state.trials) and len(samples) >= MIN_TRIALS:
            return samples, f"the values at report {rung}"

    ended = [
        (trial, trial.value)
        for trial in state.trials
        if trial.state == "completed" and trial.value is not None and math.isfinite(trial.value)
    ]
    return ended, "the last values"


def _fanova(state: SweepState, samples: Sequence[Sample]) -> Mapping[str, float]:
    """Return shares that sum to 1 (Hutter et al., ICML 2014)."""
    optuna = _import_optuna("fANOVA")
    study = optuna.create_study(direction=state.definition.goal)
    distributions = _distributions_of(state.definition)
    for trial, value in samples:
        params = _optuna_values(state.definition, trial.parameters)
        study.add_trial(
            optuna.trial.create_trial(params=params, distributions=distributions, value=value)
        )

    evaluator = optuna.importance.FanovaImportanceEvaluator(seed=0)
    shares = optuna.importance.get_param_importances(study, evaluator=evaluator)
    return {key: float(shares.get(key, 0.0)) for key in state.definition.space}


def _import_optuna(user: str) -> Any:
    """Return the module. Raise UsageError, which names what needs it, if it is not installed."""
    try:
        import optuna
    except ImportError as error:
        message = f"{user} needs Optuna, which is not installed ({error})"
        raise UsageError(message, hint=INSTALL) from None

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    return optuna


def _distributions_of(definition: Definition) -> dict[str, Any]:
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


def _optuna_values(definition: Definition, parameters: Mapping[str, Scalar]) -> dict[str, Scalar]:
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
    return int(suggested) if isinstance(item, Integers) else float(suggested)
