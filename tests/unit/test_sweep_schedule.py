"""The next action of a sweep: within its budget and parallelism, in the order of successive
halving.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloudtrain.sweeps.definition import Caps
from cloudtrain.sweeps.journal import Extended, Reported, RunEnded, StopRequested
from cloudtrain.sweeps.schedule import (
    MAX_ALIKE,
    MAX_WITHOUT_RESULT,
    End,
    Start,
    cap_of_next,
    next_action,
)
from tests.support.function_trials import SweepLife, definition_of

SEEDS = st.integers(0, 10_000)


@given(SEEDS, st.integers(1, 4), st.floats(0.5, 12.0), st.floats(0.1, 3.0), st.booleans())
def test_what_was_spent_and_may_be_spent_never_exceeds_the_budget(
    seed: int, parallel: int, budget: float, cap: float, promotes: bool
) -> None:
    definition = definition_of(
        trials=12,
        parallel=parallel,
        retries=2,
        rungs=(1, 3),
        promotes=promotes,
        budget=Caps(usd=budget),
        trial_cap=Caps(usd=cap),
    )

    def check(life: SweepLife) -> None:
        spent = life.state.spent_usd + life.state.committed_usd
        assert spent <= budget + 1e-6
        caps, refusal = cap_of_next(life.state, life.now)
        assert bool(refusal) or spent + (caps.usd or 0.0) <= budget + 1e-6

    state = SweepLife(definition, seed).run(check)
    assert state.trials or budget < cap


@given(SEEDS, st.integers(1, 5), st.booleans())
def test_parallel_trials_stay_within_their_limit_and_end_with_the_time(
    seed: int, parallel: int, promotes: bool
) -> None:
    definition = definition_of(
        trials=20,
        parallel=parallel,
        retries=1,
        rungs=(1, 3),
        promotes=promotes,
        budget=Caps(seconds=400.0),
    )

    def check(life: SweepLife) -> None:
        assert sum(trial.state == "running" for trial in life.state.trials) <= parallel
        assert len(life.state.trials) <= 20

    life = SweepLife(definition, seed)
    life.run(check)
    for trial in life.state.trials:
        for run in trial.runs:
            assert run.cap_seconds is not None
            assert run.cap_seconds >= 60
            assert run.time + run.cap_seconds <= life.state.started + 400.0 + 1e-6


@given(SEEDS, st.lists(st.floats(-900.0, 900.0), min_size=30, max_size=30))
def test_a_clock_that_is_set_back_lengthens_no_budget(seed: int, jumps: list[float]) -> None:
    life = SweepLife(definition_of(trials=30, parallel=2, budget=Caps(seconds=1_000.0)), seed)

    def check(life: SweepLife) -> None:
        latest = max(event.time for event in life.journal if not isinstance(event, Reported))
        caps, refusal = cap_of_next(life.state, life.now)
        if life.state.started and not refusal:
            assert (caps.seconds or 0.0) <= 1_000.0 - (latest - life.state.started) + 1e-6
        life.now += jumps.pop() if jumps else 0.0

    life.run(check, most=40)


@given(SEEDS, st.integers(1, 4), st.sampled_from(["grid", "random"]), st.booleans())
def test_a_sweep_ends_with_every_trial_at_its_end(
    seed: int, parallel: int, sampler: str, promotes: bool
) -> None:
    space = {"a": "choice(1, 2)", "b": "int(1, 3)"}
    definition = definition_of(
        space=space, sampler=sampler, trials=9, parallel=parallel, rungs=(1, 3), promotes=promotes
    )
    life = SweepLife(definition, seed)
    state = life.run(most=10_000)
    assert state.state in ("succeeded", "failed")
    assert (state.state == "succeeded") == (state.best is not None)
    assert not {trial.state for trial in state.trials} & {"waiting", "running"}
    if not state.reason.startswith("given up: "):
        assert len(state.trials) == 6, "each point once"
    assert sum(isinstance(action, End) for action in life.actions) == 1


def test_a_sweep_that_is_done_says_nothing_of_a_budget_that_is_used_up() -> None:
    life = SweepLife(definition_of(trials=1, budget=Caps(usd=2.0), trial_cap=Caps(usd=2.0)))
    life.act()
    life.report(life.state.trials[0], 0.5)
    life.end(life.state.trials[0], "completed")
    assert next_action(life.state, life.now) == End("succeeded")


def test_nothing_is_started_where_it_is_not_known_what_that_may_cost() -> None:
    life = SweepLife(definition_of(budget=Caps(usd=3.0)))
    assert not life.act()
    assert life.state.reason == "what a trial may cost is not known, and the budget is in money"
    assert life.state.trials == []


def test_a_sweep_that_is_stopped_starts_nothing_and_ends_when_nothing_runs() -> None:
    life = SweepLife(definition_of(parallel=2))
    life.act()
    life.write(StopRequested(time=life.now))
    assert next_action(life.state, life.now) is None
    for trial in life.state.trials:
        life.end(trial, "stopped")
    assert next_action(life.state, life.now) == End("stopped", "stop requested")


@given(SEEDS, st.integers(1, 4), st.integers(2, 4))
def test_trials_are_promoted_as_in_plain_asynchronous_successive_halving(
    seed: int, parallel: int, eta: int
) -> None:
    """From the highest rung that has one, the best of its top 1/eta that was not promoted; else a
    new one.
    """
    rungs = (1, 3, 9)
    life = SweepLife(
        definition_of(trials=25, parallel=parallel, rungs=rungs, eta=eta, promotes=True), seed
    )
    plain = PlainHalving(rungs, eta)
    while life.act():
        started = [action for action in life.actions if isinstance(action, Start)]
        while len(plain.starts) < len(started):
            plain.start()
        assert [(action.trial, action.until) for action in started] == plain.starts
        trial = life.random.choice(
            [trial for trial in life.state.trials if trial.state == "running"]
        )
        until = trial.runs[-1].until or 20
        value = round(life.random.random(), 2)
        for _ in range(trial.reports, until):
            life.report(trial, value)
        life.end(trial, "paused" if until in rungs else "completed")
        plain.reached(trial.number, until, value)
    assert len(life.state.trials) == 25


class PlainHalving:
    """The paper's algorithm with lists. It minimizes."""

    def __init__(self, rungs: tuple[int, ...], eta: int) -> None:
        self.rungs = rungs
        self.eta = eta
        self.values: list[dict[int, float]] = [{} for _ in rungs]
        self.promoted: list[set[int]] = [set() for _ in rungs]
        self.starts: list[tuple[int, int | None]] = []
        self.new = 0

    def reached(self, trial: int, report: int, value: float) -> None:
        if report in self.rungs:
            self.values[self.rungs.index(report)][trial] = value

    def start(self) -> None:
        ends: list[int | None] = [*self.rungs, None]
        for at in range(len(self.rungs) - 1, -1, -1):
            values = self.values[at]
            top = sorted(values, key=lambda trial: (values[trial], trial))[
                : len(values) // self.eta
            ]
            for trial in top:
                if trial not in self.promoted[at]:
                    self.promoted[at].add(trial)
                    return self.starts.append((trial, ends[at + 1]))
        self.starts.append((self.new, self.rungs[0]))
        self.new += 1
        return None


def promoting(**changes: Any) -> SweepLife:
    life = SweepLife(definition_of(rungs=(1, 3), promotes=True, eta=2, **changes))
    life.act()
    return life


@pytest.mark.parametrize("outcome", ["failed", "interrupted"])
def test_a_run_that_dies_at_its_rung_has_got_to_it_and_is_not_promoted_for_it(outcome: str) -> None:
    life = promoting(retries=1)
    life.report(life.state.trials[0], 0.5)
    life.end(life.state.trials[0], outcome)
    assert life.state.trials[0].state == "paused"
    life.act()
    assert life.state.trials[1].state == "running"


def test_a_trial_that_went_past_its_rung_is_promoted_from_it_once() -> None:
    life = promoting(trials=2)
    first = life.state.trials[0]
    life.report(first, 0.1)
    life.report(first, 0.1)  # before it was ended
    life.end(first, "paused")
    life.act()
    life.report(life.state.trials[1], 0.9)
    life.end(life.state.trials[1], "paused")
    life.act()
    assert (first.state, first.runs[-1].until) == ("running", 3)
    life.report(first, 0.1)
    life.end(first, "paused")
    assert next_action(life.state, life.now) == End("succeeded")


def test_a_trial_that_is_run_again_ends_at_the_rung_that_it_was_on_its_way_to() -> None:
    life = promoting(retries=1)
    life.end(life.state.trials[0], "failed")
    life.act()
    assert [run.until for run in life.state.trials[0].runs] == [1, 1]


def first_running(trials: int = 40) -> SweepLife:
    """Return a sweep whose first trial runs."""
    life = SweepLife(definition_of(trials=trials))
    life.act()
    return life


def lose(life: SweepLife, count: int, *, cause: str = "", outcome: str = "failed") -> None:
    """End `count` trials without a report."""
    for _ in range(count):
        trial = life.state.trials[-1]
        life.write(
            RunEnded(
                time=life.now,
                trial=trial.number,
                run=trial.run,
                outcome=outcome,  # type: ignore[arg-type]
                reason=f"raised {cause}" if cause else "",
                cause=cause,
            )
        )
        life.act()


@pytest.mark.parametrize(
    ("cause", "outcome", "limit", "words"),
    [
        ("ModuleNotFoundError", "failed", MAX_ALIKE, "failed alike (raised ModuleNotFoundError)"),
        ("", "completed", MAX_ALIKE, "trained to their end without reporting loss"),
        (
            "OutOfMemoryError",
            "failed",
            MAX_WITHOUT_RESULT,
            "none has reported loss; the last one: raised OutOfMemory",
        ),
        ("", "failed", MAX_WITHOUT_RESULT, "none has reported loss"),
    ],
)
def test_a_sweep_is_given_up_when_no_value_can_help(
    cause: str, outcome: str, limit: int, words: str
) -> None:
    life = first_running()
    lose(life, limit - 1, cause=cause, outcome=outcome)
    assert life.state.state == "running"
    lose(life, 1, cause=cause, outcome=outcome)
    assert life.state.state == "failed"
    assert life.state.reason.startswith(f"given up: {limit} trials ")
    assert words in life.state.reason


def test_failures_that_settings_may_explain_do_not_end_a_sweep_early() -> None:
    life = first_running()
    lose(life, 3, cause="OutOfMemoryError")
    life.report(life.state.trials[-1], 0.5)
    life.end(life.state.trials[-1], "completed")
    life.act()
    lose(life, 20, cause="ModuleNotFoundError")
    assert life.state.state == "running"


def test_a_number_is_a_result_and_nan_is_none() -> None:
    life = first_running()
    for _ in range(MAX_WITHOUT_RESULT):
        life.report(life.state.trials[-1], None)
        life.end(life.state.trials[-1], "completed")
        life.act()
    assert life.state.state == "failed"


def test_a_revived_sweep_is_given_up_again_for_the_same_cause() -> None:
    life = first_running()
    lose(life, MAX_ALIKE, cause="ImportError")
    life.write(Extended(time=life.now, trials=40))
    life.act()
    lose(life, MAX_ALIKE, cause="ImportError")
    assert life.state.reason.startswith(f"given up: {MAX_ALIKE} trials ")
    assert len(life.state.trials) == 2 * MAX_ALIKE
