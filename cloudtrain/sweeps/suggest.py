"""The values of the next trial: all points of a grid in their order, or what one of Optuna's samplers suggests.

A suggestion depends on the journal alone: on the seed, the number of the trial, and what was known when it was made.
A driver that was killed therefore goes on with the same sequence.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import islice, product
from typing import TYPE_CHECKING, Any, Protocol

from cloudtrain.errors import UsageError
from cloudtrain.spec.search_space import Choice, Dimension, Integers, Scalar
from cloudtrain.sweeps.definition import Definition
from cloudtrain.sweeps.events import Reported, Suggested, SweepEvent
from cloudtrain.sweeps.state import ENDED, SweepState

if TYPE_CHECKING:
    import optuna

INSTALL = "pip install 'cloudtrain[sweeps]'"


class Suggester(Protocol):
    """Chooses values; told of each event of the journal, in their order, before it is asked for the next trial."""

    def apply(self, event: SweepEvent, state: SweepState) -> None:
        """An event, and the state after it."""

    def suggest(self, number: int) -> Mapping[str, Scalar] | None:
        """The values of the trial of that number; None: there are no more."""


def suggester_of(definition: Definition) -> Suggester:
    """What chooses the values of a sweep. UsageError where Optuna is needed, and not installed."""
    return Grid(definition.space) if definition.sampler == "grid" else OptunaSampler(definition)


class Grid:
    """Every combination of values; the last setting varies fastest."""

    def __init__(self, space: Mapping[str, Dimension]) -> None:
        self._space = space

    def apply(self, event: SweepEvent, state: SweepState) -> None:
        """Nothing that happens changes a grid."""

    def suggest(self, number: int) -> Mapping[str, Scalar] | None:
        """The point of that number."""
        points = product(*(grid_values(dimension) for dimension in self._space.values()))
        point = next(islice(points, number, None), None)
        return None if point is None else dict(zip(self._space, point, strict=True))


def grid_values(dimension: Dimension) -> tuple[Scalar, ...]:
    """The values that a grid takes; ValueError for a range of real numbers."""
    if isinstance(dimension, Choice):
        return dimension.values
    if isinstance(dimension, Integers):
        return tuple(range(dimension.low, dimension.high + 1))
    raise ValueError(f"{dimension.text()} has no end of values")


class OptunaSampler:
    """TPE, GP, random or quasi-random values, by Optuna. The sampler of each trial has a seed of its own."""

    def __init__(self, definition: Definition) -> None:
        self._optuna = _import_optuna()
        self._definition = definition
        self._study = self._optuna.create_study(direction=definition.goal, sampler=self._sampler(0))
        self._distributions = {key: self._distribution(item) for key, item in definition.space.items()}
        self._trials: dict[int, optuna.trial.Trial] = {}
        self._told: set[int] = set()

    def apply(self, event: SweepEvent, state: SweepState) -> None:
        """Add a trial to the study, or what it has reported, or its end."""
        if isinstance(event, Suggested):
            if event.trial not in self._trials and event.trial == len(self._trials):
                self._study.enqueue_trial(dict(event.parameters))
                self._trials[event.trial] = self._study.ask(self._distributions)
        elif isinstance(event, Reported):
            if event.value is not None and event.trial in self._trials:
                self._trials[event.trial].report(event.value, event.report)
        else:
            self._tell(state)

    def suggest(self, number: int) -> Mapping[str, Scalar]:
        """What the sampler suggests, knowing all trials before."""
        self._study.sampler = self._sampler(number)
        trial = self._study.ask(self._distributions)
        self._trials[number] = trial
        return self._values(trial.params)

    def _tell(self, state: SweepState) -> None:
        """Tell the study of trials that have ended; of one that was ended at a rung, what it has reported counts."""
        states = self._optuna.trial.TrialState
        for trial in state.trials:
            if trial.number in self._told or trial.state not in ENDED:
                continue
            self._told.add(trial.number)
            value = trial.value
            if trial.state in ("failed", "stopped") or value is None or not math.isfinite(value):
                self._study.tell(self._trials[trial.number], state=states.FAIL)
            elif trial.state == "pruned":
                self._study.tell(self._trials[trial.number], state=states.PRUNED)
            else:
                self._study.tell(self._trials[trial.number], value)

    def _sampler(self, number: int) -> Any:
        samplers, seed = self._optuna.samplers, (self._definition.seed * 1_000_003 + number) % 2**32
        match self._definition.sampler:
            case "tpe":
                return samplers.TPESampler(seed=seed, constant_liar=self._definition.parallel > 1)
            case "gp":
                return samplers.GPSampler(seed=seed)
            case "qmc":
                return samplers.QMCSampler(seed=self._definition.seed)
            case _:
                return samplers.RandomSampler(seed=seed)

    def _distribution(self, item: Dimension) -> Any:
        kinds = self._optuna.distributions
        if isinstance(item, Choice):
            return kinds.CategoricalDistribution(item.values)
        if isinstance(item, Integers):
            return kinds.IntDistribution(item.low, item.high, log=item.log)
        return kinds.FloatDistribution(item.low, item.high, log=item.log)

    def _values(self, parameters: Mapping[str, Any]) -> dict[str, Scalar]:
        return {key: parameters[key] for key in self._definition.space}


def _import_optuna() -> Any:
    try:
        import optuna
    except ImportError as error:
        raise UsageError(f"this sweep is chosen by Optuna, which is not installed ({error})", hint=INSTALL) from None
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    return optuna
