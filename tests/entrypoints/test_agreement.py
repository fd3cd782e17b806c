"""How often ranks ask each other: often enough to stop soon, seldom enough to cost nothing."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

from cloudtrain_trainer.ranks import EXCHANGE_SECONDS, MAX_STRIDE, CollectiveFlags


class Alone:
    """The only rank of its world."""

    rank = 0

    def all_reduce_max(self, *values: int) -> Callable[[], list[int]]:
        return lambda: list(values)


def asked_at(step_seconds: float, steps: int, first: int = 0, began: float = 0.0) -> list[int]:
    """The steps with a question, from `first` on; the first step comes `began` seconds after the beginning."""
    now = 0.0
    agreement, asked = CollectiveFlags(Alone(), clock=lambda: now), []  # type: ignore[arg-type]
    now = began
    for step in range(first, first + steps):
        wait = agreement.start(step, lambda: (False,))
        now += step_seconds
        if wait is not None:
            wait()
            asked.append(step)
    return asked


def test_of_quick_steps_some_are_asked_about() -> None:
    asked = asked_at(step_seconds=EXCHANGE_SECONDS / 10.5, steps=100)
    assert asked[:5] == [0, 1, 3, 7, 15]
    assert {after - before for before, after in pairwise(asked[4:])} <= {8, 10}


def test_slow_steps_are_asked_about_each() -> None:
    assert asked_at(step_seconds=2 * EXCHANGE_SECONDS, steps=5) == [0, 1, 2, 3, 4]


def test_a_resumed_training_does_not_take_its_old_steps_for_quick_ones() -> None:
    assert asked_at(step_seconds=2 * EXCHANGE_SECONDS, steps=3, first=100_000, began=20) == [100_000, 100_001, 100_002]


def test_steps_that_seem_to_take_no_time_are_asked_about_now_and_then() -> None:
    asked = asked_at(step_seconds=0, steps=200)
    assert max(after - before for before, after in pairwise(asked)) == MAX_STRIDE


def test_a_wish_is_learnt_with_the_next_question() -> None:
    agreement = CollectiveFlags(Alone())  # type: ignore[arg-type]
    wait = agreement.start(0, lambda: (True, False))
    assert wait is not None
    assert wait() == [True, False]


def test_another_rank_follows_the_first_ones_stride() -> None:
    class Second(Alone):
        rank = 1

        def all_reduce_max(self, *values: int) -> Callable[[], list[int]]:
            return lambda: [max(mine, first) for mine, first in zip(values, (7, 0), strict=True)]

    agreement = CollectiveFlags(Second())  # type: ignore[arg-type]
    wait = agreement.start(0, lambda: (False,))
    assert wait is not None
    wait()
    asked = [step for step in range(1, 8) if agreement.start(step, lambda: (False,)) is not None]
    assert asked == [7]
