"""The values of the next trial: a grid's in their order, drawn by the number of the trial, or
learnt by Optuna.

A suggestion depends on the journal alone: on the seed, the number of the trial, and what was known
when it was made. A driver that was killed therefore goes on with the same sequence.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

from cloudtrain.spec.search_space import Choice, Dimension, Integers, Scalar, Uniform
from cloudtrain.sweeps import batch_size
from cloudtrain.sweeps.distinct import Distinct
from cloudtrain.sweeps.grid import Grid, points_of

if TYPE_CHECKING:
    from cloudtrain.sweeps.definition import Definition
    from cloudtrain.sweeps.state import SweepState


class Suggester(Protocol):
    """Chooses the values of trials, by nothing but the state that it is given."""

    def suggest(self, state: SweepState, draw: int = 0) -> Mapping[str, Scalar]:
        """The values of the trial after all that were suggested; another `draw` chooses anew."""


def suggester_of(definition: Definition) -> Suggester:
    """What chooses the values of a sweep; none of them twice where the space has an end, which
    `schedule` knows.

    UsageError where Optuna is needed, and not installed.
    """
    if definition.sampler == "grid":
        return Grid(definition.space)
    if batch_size.is_search(definition):
        return BatchSizes()
    found = _sampler_of(definition)
    if points_of(definition.space) is not None:
        found = Distinct(found, definition)
    return KnownPoints(found, definition.try_first) if definition.try_first else found


def _sampler_of(definition: Definition) -> Suggester:
    if definition.sampler == "random":
        return RandomValues(definition)
    from cloudtrain.sweeps.optuna_sampler import OptunaSampler

    return OptunaSampler(definition)


class BatchSizes:
    """Sizes that are doubled until one does not fit, then halved in between."""

    def suggest(self, state: SweepState, draw: int = 0) -> Mapping[str, Scalar]:  # noqa: ARG002
        """The next size. The search has an end: `schedule` knows it."""
        size = batch_size.next_trial(state)
        if size is None:
            raise ValueError("all sizes that tell anything were tried")
        return dict.fromkeys(state.definition.space, size)


class KnownPoints:
    """Points that the user names first, then those of another suggester. It chooses the settings
    that are left out.
    """

    def __init__(self, suggester: Suggester, points: Sequence[Mapping[str, Scalar]]) -> None:
        self._suggester = suggester
        self._points = points

    def suggest(self, state: SweepState, draw: int = 0) -> Mapping[str, Scalar]:
        """The values of the next trial."""
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
    return float(value) if isinstance(dimension, Uniform) else value


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
    """The value that this part of a dimension, in [0, 1), lies below: each is as likely as the
    others.
    """
    if isinstance(dimension, Choice):
        return dimension.values[int(part * len(dimension.values))]
    if isinstance(dimension, Integers):
        if not dimension.log:
            return (
                dimension.low + min(int(part * dimension.size), dimension.size - 1) * dimension.step
            )
        rounded = round(
            _between(math.log(dimension.low - 0.5), math.log(dimension.high + 0.5), part, log=True)
        )
        return min(max(rounded, dimension.low), dimension.high)
    ends = (
        (math.log(dimension.low), math.log(dimension.high))
        if dimension.log
        else (dimension.low, dimension.high)
    )
    return min(max(_between(*ends, part, log=dimension.log), dimension.low), dimension.high)


def _between(low: float, high: float, part: float, *, log: bool) -> float:
    value = low * (1.0 - part) + high * part
    return math.exp(value) if log else value
