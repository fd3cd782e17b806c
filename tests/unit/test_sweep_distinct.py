"""Finite spaces: no trial repeats."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloudtrain.errors import UsageError
from cloudtrain.spec.search_space import Choice, Dimension, Integers, Scalar, points_of, read_space
from cloudtrain.sweeps.events import Suggested
from cloudtrain.sweeps.state import SweepState, state_of
from cloudtrain.sweeps.suggest import number_of, point_at, suggester_of
from cloudtrain.sweeps.sweep import Sweep
from tests.support.function_trials import ended_sweep, sweep_of
from tests.support.sweep_lives import SPACE, SweepLife, definition_of, read_back

SMALL = {"layers": "int(1, 4)", "mode": "choice(1, true, 'x')"}


@pytest.mark.parametrize("sampler", ["random", "tpe"])
def test_a_space_with_an_end_is_tried_point_by_point_and_then_the_sweep_ends(sampler: str) -> None:
    life = SweepLife(definition_of(space=SMALL, sampler=sampler, trials=20, parallel=2), seed=3)
    state = life.run(most=2_000)
    points = Counter(repr(tuple(trial.parameters.values())) for trial in state.trials)
    assert (len(points), set(points.values())) == (12, {1})
    assert (state.state, state.reason) == (
        "succeeded",
        "all 12 combinations of its values were tried",
    )


@pytest.mark.parametrize("sampler", ["random", "tpe"])
def test_what_is_drawn_again_depends_on_the_journal_alone(sampler: str) -> None:
    life = SweepLife(definition_of(space=SMALL, sampler=sampler, trials=20, parallel=2), seed=3)
    life.run(most=2_000)
    for at, event in enumerate(life.journal):
        if isinstance(event, Suggested):
            before = state_of(life.state.definition, read_back(life.journal[:at]))
            assert suggester_of(before.definition).suggest(before) == event.parameters


def test_of_the_points_that_are_left_each_is_as_likely_as_the_others() -> None:
    counts: Counter[Scalar] = Counter()
    for seed in range(3000):
        state = SweepState.new(definition_of(space={"n": "int(1, 6)"}, seed=seed))
        for number, value in enumerate((2, 5, 6)):
            state.apply(Suggested(time=1.0, trial=number, parameters={"n": value}))
        counts[suggester_of(state.definition).suggest(state)["n"]] += 1
    assert counts.keys() == {1, 3, 4}
    assert all(900 < count < 1100 for count in counts.values())


DIMENSIONS: st.SearchStrategy[Dimension] = st.one_of(
    st.builds(
        lambda low, more: Integers(low, low + more), st.integers(-5, 5), st.integers(0, 2**60)
    ),
    st.sampled_from([Choice((1, True, "x", 1.5)), Choice((False, 0))]),
)


@given(st.dictionaries(st.sampled_from("abc"), DIMENSIONS, min_size=1), st.integers(0, 2**200))
def test_every_point_has_a_number_of_its_own(space: Mapping[str, Dimension], number: int) -> None:
    size = points_of(space)
    assert size is not None
    point = point_at(space, number % size)
    assert [*point] == [*space]
    assert number_of(space, point) == number % size


def test_a_range_of_real_numbers_has_no_end() -> None:
    assert points_of(read_space(SPACE)) is None


def test_more_trials_of_a_space_that_has_none_left_are_refused(tmp_path: Path) -> None:
    space: dict[str, Dimension] = {"lr": Choice((1e-3, 1e-2))}
    folder = ended_sweep(tmp_path, sweep_of(space, sampler="random", trials=5))
    with pytest.raises(UsageError, match="has tried all 2 combinations of its values"):
        Sweep(folder).plan_extension(3)
