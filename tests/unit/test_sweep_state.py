"""The state that a sweep's journal adds up to, its target, and its extension."""

from __future__ import annotations

import copy
import json
import math
import random
from dataclasses import asdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloudtrain.cli.sweep_view import as_listed, sweep_as_json, trial_table
from cloudtrain.spec.search_space import Integers, Scalar, points_of, read_dimension
from cloudtrain.sweeps.definition import Caps, Definition
from cloudtrain.sweeps.driver import to_be_stopped
from cloudtrain.sweeps.journal import (
    Extended,
    Launching,
    Reported,
    RunEnded,
    StopRequested,
    Suggested,
    SweepEnded,
    SweepEvent,
    parse,
)
from cloudtrain.sweeps.schedule import next_action
from cloudtrain.sweeps.state import ENDED, SweepState, state_of
from cloudtrain.sweeps.suggest import suggester_of, value_at
from tests.support.function_trials import SweepLife, definition_of

# The state that a sweep's journal adds up to; events that do not fit change nothing.

SEEDS = st.integers(0, 10_000)


def running(**changes: object) -> SweepLife:
    """A sweep whose first trial runs."""
    life = SweepLife(definition_of(**changes))
    life.act()
    return life


def test_a_definition_is_the_same_after_it_was_written_and_read() -> None:
    points: tuple[dict[str, Scalar], ...] = ({"lr": 0.01, "width": 64, "mode": "x"}, {"lr": 0.05})
    caps = {"budget": Caps(usd=5.0), "trial_cap": Caps(seconds=60.0)}
    definition = definition_of(rungs=(1, 3), try_first=points, target=0.5, **caps)
    assert Definition.from_json(json.loads(json.dumps(definition.to_json()))) == definition


WRONG = [None, True, -1, 1e308, math.nan, "x", [], {}, [1], {"a": 1}, 2**70, 10**400, -0.5]


@given(SEEDS, st.randoms(use_true_random=False))
def test_a_value_of_the_wrong_type_in_a_journal_makes_its_line_invalid_at_most(
    seed: int, drawn: random.Random
) -> None:
    life = SweepLife(
        definition_of(sampler="tpe", rungs=(1, 3), promotes=True, budget=Caps(usd=9.0)), seed
    )
    life.run()
    documents = [event.to_json() for event in life.journal]
    damaged = drawn.choice(documents)
    part = drawn.choice([damaged, damaged.get("parameters", damaged)])
    part[drawn.choice(sorted(part))] = drawn.choice(WRONG)
    state = state_of(
        life.state.definition, (parse(json.dumps(document).encode()) for document in documents)
    )
    json.dumps(sweep_as_json(state))
    assert as_listed(state)["run"] == "digits-k2x9"
    assert trial_table(state)
    next_action(state, life.now)
    suggester_of(state.definition).suggest(state)


@pytest.mark.parametrize("value", WRONG, ids=str)
def test_a_definition_with_a_value_of_the_wrong_type_is_refused(value: object) -> None:
    document = definition_of(rungs=(1, 3)).to_json()
    for name in document.keys() - {"version"}:
        try:
            definition = Definition.from_json({**document, name: value})
        except ValueError:
            continue
        stored = asdict(definition)[name]
        assert type(stored) in (type(value), tuple)


@pytest.mark.parametrize(
    "event",
    [
        Suggested(time=0.0, trial=0, parameters={}),
        Suggested(time=0.0, trial=2, parameters={}),
        Suggested(time=0.0, trial=1, parameters={"lr": 0.1, "width": 8}),
        Suggested(time=0.0, trial=1, parameters={"lr": 0.1, "width": 4, "mode": "x"}),
        Launching(time=0.0, trial=0, run="again"),
        Launching(time=0.0, trial=5, run="unknown"),
        Launching(time=0.0, trial=-1, run="unknown"),
        Reported(time=0.0, trial=0, report=1, value=0.1),
        Reported(time=0.0, trial=0, report=3, value=0.1),
        Reported(time=0.0, trial=-1, report=2, value=0.1),
        RunEnded(time=0.0, trial=0, run="another", outcome="completed"),
        RunEnded(time=0.0, trial=7, run="digits-k2x9-t000", outcome="completed"),
        Extended(time=0.0, trials=0),
    ],
    ids=lambda event: json.dumps(event.to_json()),
)
def test_an_event_that_does_not_fit_changes_nothing(event: SweepEvent) -> None:
    life = running()
    life.report(life.state.trials[0], 0.5)
    before = copy.deepcopy(asdict(life.state))
    life.state.apply(event)
    assert asdict(life.state) == before


POINT = {"lr": 0.1, "width": 8, "mode": "x"}
EVENTS: st.SearchStrategy[SweepEvent] = st.one_of(
    st.builds(Suggested, time=st.just(1.0), trial=st.integers(-1, 4), parameters=st.just(POINT)),
    st.builds(
        Launching,
        time=st.just(1.0),
        trial=st.integers(-1, 4),
        run=st.sampled_from("ab"),
        until=st.sampled_from([1, 3]),
    ),
    st.builds(
        Reported,
        time=st.just(1.0),
        trial=st.integers(-1, 4),
        report=st.integers(-1, 4),
        value=st.sampled_from([None, 0.1, 0.2]),
    ),
    st.builds(
        RunEnded,
        time=st.just(1.0),
        trial=st.integers(-1, 4),
        run=st.sampled_from("ab"),
        outcome=st.sampled_from(
            ["completed", "pruned", "paused", "failed", "interrupted", "stopped", "refused"]
        ),
    ),
    st.builds(Extended, time=st.just(9.0), trials=st.integers(0, 9)),
    st.builds(StopRequested, time=st.just(2.0)),
    st.builds(
        SweepEnded, time=st.just(3.0), state=st.sampled_from(["succeeded", "failed", "stopped"])
    ),
)


@given(st.lists(EVENTS, max_size=40))
def test_whatever_a_journal_holds_its_state_makes_sense(events: list[SweepEvent]) -> None:
    state = SweepState.new(definition_of(rungs=(1, 3), retries=1))
    for event in events:
        ended = {trial.number: trial.state for trial in state.trials if trial.state in ENDED}
        state.apply(event)
        assert ended.items() <= {trial.number: trial.state for trial in state.trials}.items()
    for trial in state.trials:
        assert trial.failures <= 2
        assert trial.number in state.rungs[0] or trial.reports < 1
        assert trial.number in state.rungs[1] or trial.reports < 3
    for rung, promoted in zip(state.rungs, state.promoted, strict=True):
        assert promoted <= rung.keys() <= set(range(len(state.trials)))
    assert state.wanted >= 0


def test_an_interruption_is_no_failure_and_the_trial_is_run_again() -> None:
    life = running()
    trial = life.state.trials[0]
    for attempt in range(2, 6):
        life.end(trial, "interrupted")
        assert trial.state == "waiting"
        life.act()
        assert trial.run == f"digits-k2x9-t000-{attempt}"
    assert trial.failures == 0


@pytest.mark.parametrize("retries", [0, 1, 3])
def test_a_failed_trial_is_run_again_as_often_as_the_spec_says(retries: int) -> None:
    life = running(retries=retries, trials=1)
    trial = life.state.trials[0]
    for _ in range(retries):
        life.end(trial, "failed")
        assert life.act()
        assert trial.state == "running"
    life.end(trial, "failed")
    assert trial.state == "failed"
    assert not life.act()
    assert (life.state.state, life.state.reason) == ("failed", "all 1 trials failed")


def test_unknown_cost_of_an_ended_run_is_its_cap_or_zero_if_never_started() -> None:
    life = running(trial_cap=Caps(usd=2.0), budget=Caps(usd=50.0))
    life.end(life.state.trials[0], "completed")
    assert life.state.spent_usd == 2.0
    life.act()
    life.end(life.state.trials[1], "completed", usd=0.25)
    assert life.state.spent_usd == 2.25
    life.act()
    life.end(life.state.trials[2], "refused")
    assert life.state.spent_usd == 2.25


def test_a_run_goes_on_from_the_run_that_made_the_latest_report() -> None:
    life = running()
    trial = life.state.trials[0]
    life.report(trial, 0.5)
    life.end(trial, "interrupted")
    life.act()
    life.end(trial, "interrupted")  # before it could save anything
    life.act()
    assert [run.resumes for run in trial.runs] == ["", "digits-k2x9-t000", "digits-k2x9-t000"]


def test_a_trial_has_the_position_of_its_latest_report() -> None:
    life = running()
    life.write(Reported(time=1.0, trial=0, report=1, value=0.5, position=22.0))
    assert life.state.trials[0].position == 22.0


def test_the_best_trial_is_the_one_with_the_best_latest_value() -> None:
    life = running(trials=5, parallel=5, goal="maximize")
    curves: list[list[float | None]] = [[0.9, 0.5], [0.7], [0.8], [None], [0.7]]
    outcomes = ["completed", "pruned", "failed", "completed", "completed"]
    for trial, curve, outcome in zip(list(life.state.trials), curves, outcomes, strict=True):
        for value in curve:
            life.report(trial, value)
        life.end(trial, outcome)
    best = life.state.best
    assert best is not None
    assert best.number == 1
    assert life.state.trials[3].value is not None
    assert math.isnan(life.state.trials[3].value)


def test_the_time_between_an_end_and_more_trials_is_not_of_the_budget() -> None:
    life = running(trials=1, budget=Caps(seconds=3600.0))
    life.now += 600
    life.report(life.state.trials[0], 0.5)
    life.end(life.state.trials[0], "completed")
    life.act()
    life.now += 1_000_000
    life.write(Extended(time=life.now, trials=2))
    assert life.act()
    assert life.state.trials[1].runs[0].cap_seconds == 3000.0


# A target of a sweep, and steps of whole numbers.


def reach(goal: str, value: float) -> SweepLife:
    """Return a sweep with two running trials; the second reports a value."""
    life = SweepLife(definition_of(parallel=2, goal=goal, target=0.5))
    life.act()
    life.report(life.state.trials[1], value)
    return life


def test_a_sweep_ends_when_its_target_is_reached() -> None:
    life = reach("minimize", 0.5)
    assert [trial.number for trial in to_be_stopped(life.state)] == [0]
    life.end(life.state.trials[0], "stopped")
    assert life.act()
    assert len(life.state.trials) == 2
    life.end(life.state.trials[1], "completed")
    assert not life.act()
    assert (life.state.state, life.state.reason) == (
        "succeeded",
        "trial 1 has reached the target: loss 0.5",
    )
    life.write(Extended(time=life.now, trials=4))
    assert life.act()
    assert len(life.state.trials) == 4


@pytest.mark.parametrize(
    ("goal", "value"), [("minimize", 0.6), ("maximize", 0.4), ("minimize", float("nan"))]
)
def test_a_worse_value_is_not_the_target(goal: str, value: float) -> None:
    life = reach(goal, value)
    assert to_be_stopped(life.state) == []
    assert life.state.reached is None


@pytest.mark.parametrize(
    ("text", "values"), [("int(8, 33, 8)", [8, 16, 24, 32]), ("int(1, 4)", [1, 2, 3, 4])]
)
def test_whole_numbers_may_have_a_step(text: str, values: list[int]) -> None:
    dimension = read_dimension(text)
    assert isinstance(dimension, Integers)
    assert list(dimension.values) == values
    assert read_dimension(dimension.text()) == dimension
    assert {value_at(dimension, part / 100) for part in range(100)} == set(values)
    assert points_of({"a": dimension}) == 4
    state = SweepState.new(definition_of(space={"a": text}, sampler="tpe"))
    assert suggester_of(state.definition).suggest(state)["a"] in values
