"""Points of a finite space by number: the last setting varies fastest. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from cloudtrain.spec.search_space import Choice, Dimension, Integers, Scalar

if TYPE_CHECKING:
    from cloudtrain.sweeps.state import SweepState

Space = Mapping[str, Dimension]


class Grid:
    """Suggester of every point, in order."""

    def __init__(self, space: Space) -> None:
        self._space = space

    def suggest(self, state: SweepState, draw: int = 0) -> Mapping[str, Scalar]:  # noqa: ARG002
        """Return the next point."""
        return point_at(self._space, len(state.trials))


def points_of(space: Space) -> int | None:
    """Return the number of points of a space; None if it contains a real range."""
    sizes = [_size(dimension) for dimension in space.values()]
    return None if None in sizes else math.prod(size for size in sizes if size is not None)


def _size(dimension: Dimension) -> int | None:
    if isinstance(dimension, Choice):
        return len(dimension.values)
    return dimension.size if isinstance(dimension, Integers) else None


def point_at(space: Space, number: int) -> Mapping[str, Scalar]:
    """Return a point by number, from 0. Raise ValueError for an infinite space."""
    point: dict[str, Scalar] = {}
    for key in reversed(list(space)):
        values = grid_values(space[key])
        number, at = divmod(number, len(values))
        point[key] = values[at]
    return {key: point[key] for key in space}


def number_of(space: Space, point: Mapping[str, Scalar]) -> int:
    """Return the number of a point. Raise ValueError if the space does not contain it."""
    number = 0
    for key, dimension in space.items():
        values = grid_values(dimension)
        value = point[key]
        if isinstance(values, range):
            at = values.index(int(value))
        else:  # with types: 1 and true are equal
            at = _kinds(values).index((type(value), value))
        number = number * len(values) + at
    return number


def grid_values(dimension: Dimension) -> Sequence[Scalar]:
    """Return the values of a setting, in order. Raise ValueError for a real range."""
    values = _values(dimension)
    if values is None:
        raise ValueError(f"{dimension.text()} has infinitely many values")
    return values


def _values(dimension: Dimension) -> Sequence[Scalar] | None:
    if isinstance(dimension, Choice):
        return dimension.values
    return dimension.values if isinstance(dimension, Integers) else None


def _kinds(values: Sequence[Scalar]) -> list[tuple[type, Scalar]]:
    return [(type(value), value) for value in values]
