"""Suggest the values of the next trial.

A suggestion depends on the journal alone: on the seed, the number of the trial, and the events
before it. The successor of a killed driver continues the same sequence.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from typing import Protocol

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
from cloudtrain.sweeps.optuna_sampler import OptunaSampler
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
    if definition.sampler == "random":
        suggester: Suggester = RandomValues(definition)
    else:
        suggester = OptunaSampler(definition)

    if points_of(definition.space) is not None:
        suggester = Distinct(suggester, definition)
    if not definition.try_first:
        return suggester

    return KnownPoints(suggester, definition.try_first)


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
            chosen = dict(self._suggester.suggest(state, draw))
            chosen.update(point)
            point = chosen

        return {key: _of_type(space[key], point[key]) for key in space}


def _of_type(dimension: Dimension, value: Scalar) -> Scalar:
    """Return a value as trials have it: 1 of a range of real numbers is 1.0."""
    if not isinstance(dimension, (Uniform, Normal)):
        return value

    return float(value)


class RandomValues:
    """Random values that depend on the seed and the number of the trial alone."""

    def __init__(self, definition: Definition) -> None:
        self._space = definition.space
        self._seed = definition.seed

    def suggest(self, state: SweepState, draw: int = 0) -> Mapping[str, Scalar]:
        """Return the next point."""
        number = len(state.trials)
        # The sequence of `random.random` for a seed is the same in every version of Python.
        seed = f"{self._seed}:{number}"
        if draw:
            seed += f":{draw}"

        generator = random.Random(seed)
        return {key: value_at(item, generator.random()) for key, item in self._space.items()}


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
    if not log:
        return value

    return math.exp(value)
