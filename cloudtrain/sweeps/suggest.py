"""The values of the next trial: a grid's in their order, drawn by the number of the trial, or learnt by Optuna.

A suggestion depends on the journal alone: on the seed, the number of the trial, and what was known when it was made.
A driver that was killed therefore goes on with the same sequence.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Protocol

from cloudtrain.spec.search_space import Choice, Dimension, Integers, Scalar
from cloudtrain.sweeps.definition import Definition
from cloudtrain.sweeps.state import SweepState

PRIMES: Sequence[int] = [n for n in range(2, 114) if all(n % d for d in range(2, n))]
"""A base for each of the 30 settings that a space may have."""


class Suggester(Protocol):
    """Chooses the values of trials. It remembers nothing: all that it knows is in the state that it is given."""

    def suggest(self, state: SweepState) -> Mapping[str, Scalar]:
        """The values of the trial after all that were suggested. A grid has an end: `schedule` knows it."""


def suggester_of(definition: Definition) -> Suggester:
    """What chooses the values of a sweep. UsageError where Optuna is needed, and not installed."""
    match definition.sampler:
        case "grid":
            return Grid(definition.space)
        case "random" | "qmc":
            return Drawn(definition)
        case _:
            from cloudtrain.sweeps.optuna_sampler import OptunaSampler

            return OptunaSampler(definition)


class Grid:
    """Every combination of values; the last setting varies fastest."""

    def __init__(self, space: Mapping[str, Dimension]) -> None:
        self._space = space

    def suggest(self, state: SweepState) -> Mapping[str, Scalar]:
        """The next point."""
        left = len(state.trials)
        point: dict[str, Scalar] = {}
        for key in reversed(list(self._space)):
            values = grid_values(self._space[key])
            left, at = divmod(left, len(values))
            point[key] = values[at]
        return {key: point[key] for key in self._space}


def grid_size(space: Mapping[str, Dimension]) -> int:
    """How many points a grid has; ValueError where it has a range of real numbers."""
    return math.prod(len(grid_values(dimension)) for dimension in space.values())


def grid_values(dimension: Dimension) -> Sequence[Scalar]:
    """The values that a grid takes; ValueError for a range of real numbers."""
    if isinstance(dimension, Choice):
        return dimension.values
    if isinstance(dimension, Integers):
        return range(dimension.low, dimension.high + 1)
    raise ValueError(f"{dimension.text()} has no end of values")


class Drawn:
    """Values that depend on the seed and the number of the trial alone: at random, or spread evenly (`qmc`)."""

    def __init__(self, definition: Definition) -> None:
        self._space, self._seed, self._even = definition.space, definition.seed, definition.sampler == "qmc"

    def suggest(self, state: SweepState) -> Mapping[str, Scalar]:
        """The next point."""
        number = len(state.trials)
        if self._even:
            parts = [halton(number, PRIMES[at], f"{self._seed}:{at}") for at in range(len(self._space))]
        else:
            # The sequence of `random.random` for a seed is the same in every version of Python.
            drawn = random.Random(f"{self._seed}:{number}")
            parts = [drawn.random() for _ in self._space]
        return {key: value_at(self._space[key], part) for key, part in zip(self._space, parts, strict=True)}


def halton(number: int, base: int, seed: str) -> float:
    """The element of that number, from 0, of a Halton sequence with shuffled digits, in [0, 1).

    Any run of `base` elements has one in each of `base` equal parts.
    Source: Owen, A randomized Halton algorithm in R (arXiv 1706.02808).
    """
    value, scale, digit = 0.0, 1.0 / base, 0
    while scale > 2.0**-53:
        number, last = divmod(number, base)
        value += _shuffled(base, digit, seed)[last] * scale
        scale, digit = scale / base, digit + 1
    return min(value, 1.0 - 2.0**-53)


@cache
def _shuffled(base: int, digit: int, seed: str) -> Sequence[int]:
    drawn = random.Random(f"{seed}:{digit}")
    return sorted(range(base), key=[drawn.random() for _ in range(base)].__getitem__)


def value_at(dimension: Dimension, part: float) -> Scalar:
    """The value that this part of a dimension, in [0, 1), lies below: each is as likely as the others."""
    if isinstance(dimension, Choice):
        return dimension.values[int(part * len(dimension.values))]
    if isinstance(dimension, Integers):
        if not dimension.log:
            return min(dimension.low + int(part * (dimension.high - dimension.low + 1)), dimension.high)
        rounded = round(_between(math.log(dimension.low - 0.5), math.log(dimension.high + 0.5), part, log=True))
        return min(max(rounded, dimension.low), dimension.high)
    ends = (math.log(dimension.low), math.log(dimension.high)) if dimension.log else (dimension.low, dimension.high)
    return min(max(_between(*ends, part, log=dimension.log), dimension.low), dimension.high)


def _between(low: float, high: float, part: float, *, log: bool) -> float:
    value = low * (1.0 - part) + high * part
    return math.exp(value) if log else value
