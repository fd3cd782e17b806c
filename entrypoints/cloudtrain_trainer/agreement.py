"""When ranks ask each other: what one of them wants done between two steps is done by all, after the same step."""

from __future__ import annotations

import time
from collections.abc import Callable

from cloudtrain_trainer.ranks import Ranks

ASK_SECONDS = 0.2
"""Between two questions, about. One costs every rank a message: of a step that takes 13 ms on a CPU it was a tenth."""
MOST_STEPS = 16
"""Between two questions: the clock is the host's, which at first runs ahead of a GPU."""


class Agreement:
    """Asks at steps that all ranks know: with each question the first rank says how many steps the next is away."""

    def __init__(self, ranks: Ranks, clock: Callable[[], float] = time.monotonic) -> None:
        self._ranks, self._clock = ranks, clock
        self._next, self._stride, self._asked = 0, 1, clock()

    def ask(self, step: int, wishes: Callable[[], tuple[bool, ...]]) -> Callable[[], list[bool]] | None:
        """Start asking, if this step is one for it: what comes back tells which wishes ANY rank had.

        Asking is apart from learning so that the answer travels while the step computes.
        """
        if step < self._next:
            return None
        answer = self._ranks.agree(self._pace() if self._next else 1, *wishes())
        self._asked = self._clock()

        def learn() -> list[bool]:
            self._stride, *wished = answer()
            self._next = step + self._stride
            return [bool(wish) for wish in wished]

        return learn

    def _pace(self) -> int:
        """Steps until the next question, by the time that those since the last one took; the first rank's counts."""
        if self._ranks.rank:
            return 0
        seconds = max(self._clock() - self._asked, 1e-9) / self._stride
        return max(1, min(int(ASK_SECONDS / seconds), 2 * self._stride, MOST_STEPS))
