"""Finite spaces: no trial repeats, and Optuna gets the same data step by step as in one go."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cloudtrain.errors import UsageError
from cloudtrain.spec.search_space import Choice, Dimension, Integers, Scalar, read_space
from cloudtrain.sweeps.events import Suggested
from cloudtrain.sweeps.grid import number_of, point_at, points_of
from cloudtrain.sweeps.optuna_sampler import OptunaSampler
from cloudtrain.sweeps.state import SweepState, state_of
from cloudtrain.sweeps.suggest import suggester_of
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


class Compared:
    """A suggester that is compared with a fresh one, and at times replaced as by a kill."""

    def __init__(self, definition: Any, kills: set[int]) -> None:
        self.definition = definition
        self.kills = kills
        self.kept = OptunaSampler(definition)
        self.anew = 0
        self.asked = 0

    def suggest(self, state: SweepState) -> Mapping[str, Scalar]:
        if len(state.trials) in self.kills:
            self.kept = OptunaSampler(self.definition)
        before = self.kept._study
        for draw in (1, 2, 0) if len(state.trials) % 3 == 0 else (0,):
            suggestion = self.kept.suggest(state, draw)
            assert suggestion == OptunaSampler(self.definition).suggest(state, draw)
        self.asked += 1
        self.anew += self.kept._study is not before
        return suggestion


@settings(max_examples=12)
@given(
    seed=st.integers(0, 999),
    kills=st.sets(st.integers(0, 25)),
    parallel=st.integers(1, 4),
    rungs=st.sampled_from([(), (1, 3)]),
    space=st.sampled_from([SPACE, {"x": "uniform(0, 1)", "n": "int(1, 3)"}]),
)
def test_a_study_that_is_gone_on_with_suggests_what_one_made_anew_suggests(
    seed: int, kills: set[int], parallel: int, rungs: tuple[int, ...], space: dict[str, str]
) -> None:
    changes = {"rungs": rungs, "promotes": bool(rungs)}
    definition = definition_of(
        space=space, sampler="tpe", trials=25, parallel=parallel, seed=seed, **changes
    )
    life = SweepLife(definition, seed=seed)
    compared = Compared(definition, kills)
    life.suggester = compared  # type: ignore[assignment]
    life.run(most=2_000)
    assert compared.asked == len(life.state.trials)
    if not rungs:
        assert compared.anew == 1 + len({kill for kill in kills if 0 < kill < compared.asked})


def test_a_gaussian_process_suggests_the_same_from_a_study_that_is_gone_on_with() -> None:
    pytest.importorskip("torch").set_num_threads(1)
    definition = definition_of(space={"x": "uniform(0, 1)"}, sampler="gp", trials=13)
    life = SweepLife(definition, seed=1)
    compared = Compared(definition, {11})
    life.suggester = compared  # type: ignore[assignment]
    life.run(most=2_000)
    assert compared.asked > 11
