"""Successive halving, and `sweep more N`."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloudtrain.errors import UsageError
from cloudtrain.spec.sweep import default_rungs
from cloudtrain.sweeps.definition import Caps
from cloudtrain.sweeps.journal import StopRequested
from cloudtrain.sweeps.state import state_of
from cloudtrain.sweeps.sweep import plan_extension
from cloudtrain_wire.rungs import goes_on, promotable, rungs_of
from tests.support.function_trials import SweepLife, definition_of, read_back

# Successive halving: the rungs, the survivors and the promotions, compared with a plain version.

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


def test_the_most_runs_of_a_sweep_count_promotions_and_retries() -> None:
    rungs = (1, 3, 9)
    assert definition_of(rungs=rungs).most_runs(27) == 27
    assert definition_of(rungs=rungs, promotes=True).most_runs(27) == 27 + 9 + 3 + 1
    assert definition_of(rungs=(1,), promotes=True, eta=4, retries=2).most_runs(4) == 15


# `sweep more N` adds N trials, resumes trials that a stop interrupted, and prints the possible
# cost.


def stopped(**changes: object) -> SweepLife:
    """Return a sweep that was stopped: trial 0 completed, trials 1 and 2 were interrupted."""
    life = SweepLife(definition_of(**{"trials": 40, "parallel": 2, **changes}))
    life.act()
    life.report(life.state.trials[0], 0.5)
    life.end(life.state.trials[0], "completed", usd=1.0)
    life.act()
    life.report(life.state.trials[2], 0.3)
    life.write(StopRequested(time=life.now))
    for number in (1, 2):
        life.end(life.state.trials[number], "stopped", usd=0.5)
    life.act()
    assert life.state.state == "stopped"
    return life


def extend(life: SweepLife, trials: int, **options: object) -> None:
    """Carry out an extension."""
    life.write(plan_extension(life.state, trials, life.now, **options).event)  # type: ignore[arg-type]


def test_more_adds_the_requested_trials_beside_interrupted_ones() -> None:
    life = stopped()
    extension = plan_extension(life.state, 3, life.now)
    assert (extension.new_trials, extension.resumed) == (3, (1, 2))
    extend(life, 3)
    while life.act():
        trial = next(trial for trial in life.state.trials if trial.state == "running")
        life.report(trial, 0.4)
        life.end(trial, "completed")
    assert [trial.state for trial in life.state.trials] == ["completed"] * 6
    assert [len(trial.runs) for trial in life.state.trials] == [1, 2, 2, 1, 1, 1]
    assert life.state.trials[2].runs[1].resumes == "digits-k2x9-t002"
    assert life.state.trials[1].runs[1].resumes == ""


def test_a_trial_that_was_stopped_by_itself_is_not_resumed() -> None:
    life = SweepLife(definition_of(trials=1))
    life.act()
    life.report(life.state.trials[0], 0.5)
    life.end(life.state.trials[0], "stopped")
    life.act()
    assert plan_extension(life.state, 2, life.now).resumed == ()
    with pytest.raises(UsageError, match="no trial of sweep digits-k2x9 was interrupted"):
        plan_extension(life.state, 0, life.now)


def test_the_cost_is_that_of_new_and_resumed_trials_within_the_budget() -> None:
    life = stopped(trial_cap=Caps(usd=2.0), budget=Caps(usd=20.0))
    assert plan_extension(life.state, 3, life.now).worst_usd == 10.0
    assert plan_extension(life.state, 30, life.now).worst_usd == 18.0
    assert plan_extension(life.state, 30, life.now, budget=Caps(usd=50.0)).worst_usd == 48.0


def test_a_budget_that_is_used_up_must_be_raised() -> None:
    life = stopped(trial_cap=Caps(usd=2.0), budget=Caps(usd=5.0))
    extend(life, 1)  # 3 of 5 USD are left
    life.act()
    life.end(life.state.trials[1], "completed", usd=2.0)
    life.act()
    with pytest.raises(
        UsageError, match=r"no trial can be started: 1.00 of 5.00 USD are left"
    ) as caught:
        plan_extension(life.state, 1, life.now)
    assert caught.value.hint == "--max-cost raises the budget"
    extend(life, 1, budget=Caps(usd=8.0), parallel=3)
    life.act()
    assert life.state.definition.budget == Caps(usd=8.0)
    assert life.state.definition.parallel == 3
    assert sum(trial.state == "running" for trial in life.state.trials) == 2  # 4 of 8 USD are left


def test_time_that_is_over_must_be_raised() -> None:
    life = stopped(budget=Caps(seconds=600.0))
    life.state.started -= 590.0
    with pytest.raises(UsageError, match="the time of the budget is over") as caught:
        plan_extension(life.state, 1, life.now)
    assert caught.value.hint == "--max-time raises the budget"
    extend(life, 1, budget=Caps(seconds=1200.0))
    assert life.act()


def test_a_sweep_that_is_being_stopped_takes_no_more_trials() -> None:
    life = SweepLife(definition_of())
    life.act()
    life.write(StopRequested(time=life.now))
    with pytest.raises(UsageError, match="is being stopped"):
        plan_extension(life.state, 3, life.now)


@given(st.integers(0, 1_000), st.integers(1, 9), st.integers(0, 40))
def test_an_extension_after_a_stop_at_any_event_runs_as_many_new_trials(
    seed: int, more: int, at: int
) -> None:
    definition = definition_of(trials=12, parallel=3, rungs=(1, 3), promotes=True)
    life = SweepLife(definition, seed)
    life.run(most=at)
    if life.state.ended:
        return
    life.write(StopRequested(time=life.now))
    while life.act():
        trial = next(trial for trial in life.state.trials if trial.state == "running")
        life.end(trial, "stopped")
    before = len(life.state.trials)
    extension = plan_extension(life.state, more, life.now)
    life.write(extension.event)
    life.run(most=10_000)
    if not life.state.reason.startswith("given up"):
        assert len(life.state.trials) == before + more
        assert not {trial.state for trial in life.state.trials} & {"waiting", "running"}
        assert all(len(life.state.trials[number].runs) > 0 for number in extension.resumed)
    assert repr(
        state_of(
            definition_of(trials=12, parallel=3, rungs=(1, 3), promotes=True),
            read_back(life.journal),
        )
    ) == (repr(life.state))
