"""Successive halving: the rungs, the survivors and the promotions, compared with a plain version."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloudtrain.spec.sweep import default_rungs
from cloudtrain_launcher.rungs import goes_on, is_better, promotable, rungs_of
from tests.support.sweep_lives import definition_of

VALUES = st.one_of(st.sampled_from([0.1, 0.2, 0.3, 0.4]), st.floats(-1, 1), st.just(math.nan))
GOALS = st.sampled_from(["minimize", "maximize"])
ETAS = st.integers(2, 5)


@pytest.mark.parametrize(
    ("grace", "eta", "last", "rungs"),
    [
        (1, 3, 52, [1, 3, 9, 27]),
        (1, 3, 27, [1, 3, 9]),
        (1, 3, 28, [1, 3, 9, 27]),
        (10, 4, 200, [10, 40, 160]),
        (4, 2, 4, []),
        (4, 2, 5, [4]),
    ],
)
def test_rungs_are_exactly_the_powers_below_the_last_report(
    grace: int, eta: int, last: int, rungs: list[int]
) -> None:
    assert rungs_of(grace, eta, last) == rungs


@pytest.mark.parametrize(
    ("trials", "last", "rungs"),
    [
        (20, 52, (6, 2)),
        (99, 9, (1, 2)),
        (99, 2, (1, 2)),
        (20, 100, (11, 2)),
        (20, None, (1, 2)),
        (100, 52, (1, 3)),
    ],
)
def test_few_trials_are_compared_later(
    trials: int, last: int | None, rungs: tuple[int, int]
) -> None:
    assert default_rungs(trials, last) == rungs


def test_where_the_last_report_is_unknown_there_are_rungs_for_any() -> None:
    assert rungs_of(1, 2, None)[:4] == [1, 2, 4, 8]
    assert rungs_of(1, 2, None)[-1] > 500_000


@given(VALUES, st.lists(VALUES, max_size=12), ETAS, GOALS)
def test_a_trial_goes_on_as_in_plain_successive_halving(
    trial_value: float, other_values: list[float], eta: int, goal: str
) -> None:
    everyone = sorted(
        (
            -value if goal == "maximize" else value
            for value in [trial_value, *other_values]
            if not math.isnan(value)
        ),
    )
    count = len(other_values) + 1
    if math.isnan(trial_value):
        expected = False
    elif count < eta:
        expected = True
    else:
        cut = everyone[min(max(1, count // eta), len(everyone)) - 1]
        expected = (-trial_value if goal == "maximize" else trial_value) <= cut
    assert goes_on(trial_value, other_values, eta, goal) is expected


@given(st.lists(VALUES, max_size=12), st.sets(st.integers(0, 11)), ETAS, GOALS)
def test_the_best_of_the_top_that_has_not_gone_on_yet_is_promoted(
    values: list[float], stopped: set[int], eta: int, goal: str
) -> None:
    loss = {
        at: -value if goal == "maximize" else value
        for at, value in enumerate(values)
        if not math.isnan(value)
    }
    top = sorted(loss, key=loss.__getitem__)[: len(values) // eta]
    expected = next((number for number in top if number not in stopped), None)
    assert promotable(dict(enumerate(values)), stopped, eta, goal) == expected


def test_a_value_that_is_not_a_number_is_worse_than_every_number() -> None:
    assert is_better(1.0, math.nan, "minimize")
    assert not is_better(math.nan, 1.0, "maximize")
    assert not is_better(math.nan, math.nan, "maximize")


def test_the_most_runs_of_a_sweep_count_promotions_and_retries() -> None:
    rungs = (1, 3, 9)
    assert definition_of(rungs=rungs).most_runs(27) == 27
    assert definition_of(rungs=rungs, promotes=True).most_runs(27) == 27 + 9 + 3 + 1
    assert definition_of(rungs=(1,), promotes=True, eta=4, retries=2).most_runs(4) == 15
