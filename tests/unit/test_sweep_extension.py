"""`sweep more N` adds N trials, resumes trials that a stop interrupted, and prints the possible
cost.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloudtrain.errors import UsageError
from cloudtrain.sweeps.definition import Caps
from cloudtrain.sweeps.events import StopRequested
from cloudtrain.sweeps.state import state_of
from cloudtrain.sweeps.sweep import plan_extension
from tests.support.sweep_lives import SweepLife, definition_of, read_back


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


def test_a_running_sweep_gets_as_many_trials_more() -> None:
    life = SweepLife(definition_of(trials=8))
    life.act()
    extend(life, 3)
    assert life.state.wanted == 11


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
        assert not life.state.in_flight
        assert all(len(life.state.trials[number].runs) > 0 for number in extension.resumed)
    assert repr(
        state_of(
            definition_of(trials=12, parallel=3, rungs=(1, 3), promotes=True),
            read_back(life.journal),
        )
    ) == (repr(life.state))
