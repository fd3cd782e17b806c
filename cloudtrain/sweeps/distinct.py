"""No trial twice: where a space has an end of points, one that was suggested before is not
suggested again.

It would be told the same. To try values under several seeds, the seed is a setting of the space.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import TYPE_CHECKING

from cloudtrain.spec.search_space import Scalar
from cloudtrain.sweeps.grid import number_of, point_at, points_of

if TYPE_CHECKING:
    from cloudtrain.sweeps.definition import Definition
    from cloudtrain.sweeps.state import SweepState
    from cloudtrain.sweeps.suggest import Suggester

DRAWS = 4
"""So often a sampler may choose; then one of the points that are left is drawn, each as likely as
the others.
"""


class Distinct:
    """The suggestions of another suggester, without the points that a trial has had. Like it, by
    the state alone.
    """

    def __init__(self, suggester: Suggester, definition: Definition) -> None:
        self._suggester = suggester
        self._space = definition.space
        self._seed = definition.seed
        self._size = points_of(definition.space) or 0

    def suggest(self, state: SweepState, draw: int = 0) -> Mapping[str, Scalar]:
        """A point that no trial has had, as long as there is one: `schedule` knows when there is
        none.
        """
        known = {_identity(trial.parameters) for trial in state.trials}
        for each in range(draw, draw + DRAWS):
            found = self._suggester.suggest(state, each)
            if _identity(found) not in known:
                return found
        return self._one_left(state)

    def _one_left(self, state: SweepState) -> Mapping[str, Scalar]:
        known = {number_of(self._space, trial.parameters) for trial in state.trials}
        # The sequence of `random.random` for a seed is the same in every version of Python.
        part = random.Random(f"{self._seed}:{len(state.trials)}:left").random()
        at = int(part * max(1, self._size - len(known)))
        for number in sorted(known):
            at += number <= at
        return point_at(self._space, at % self._size)


def _identity(point: Mapping[str, Scalar]) -> object:
    """What two points have in common if they are the same; 1 and true are two values."""
    return frozenset((key, type(value), value) for key, value in point.items())
