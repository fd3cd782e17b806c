"""Knowledge before the first trial: points to try, an earlier sweep, a target; and steps of whole
numbers.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import cloudtrain
from cloudtrain.errors import SpecError, UsageError
from cloudtrain.spec.search_space import Integers, Scalar, read_dimension
from cloudtrain.sweeps.definition import Definition, EarlierTrial
from cloudtrain.sweeps.driver import to_be_stopped
from cloudtrain.sweeps.events import Extended, Suggested
from cloudtrain.sweeps.grid import points_of
from cloudtrain.sweeps.planning import earlier_trials, plan_sweep
from cloudtrain.sweeps.state import SweepState, state_of
from cloudtrain.sweeps.suggest import suggester_of, value_at
from tests.support.function_trials import ended_sweep, sweep_of
from tests.support.sweep_lives import SPACE, SweepLife, definition_of, read_back

POINTS: tuple[dict[str, Scalar], ...] = ({"lr": 0.01, "width": 64, "mode": "x"}, {"lr": 0.05})


@pytest.mark.parametrize("sampler", ["random", "tpe"])
def test_known_points_come_first_and_open_settings_are_chosen(sampler: str) -> None:
    life = SweepLife(definition_of(sampler=sampler, trials=6, try_first=POINTS))
    life.run(most=5_000)
    parameters = [trial.parameters for trial in life.state.trials]
    assert parameters[0] == POINTS[0]
    assert parameters[1]["lr"] == 0.05
    assert all(point.keys() == SPACE.keys() for point in parameters)
    places = [at for at, event in enumerate(life.journal) if isinstance(event, Suggested)]
    for at in places:
        state = state_of(life.state.definition, read_back(life.journal[:at]))
        assert suggester_of(state.definition).suggest(state) == state_parameters(life, at)


def state_parameters(life: SweepLife, at: int) -> object:
    event = life.journal[at]
    assert isinstance(event, Suggested)
    return event.parameters


def test_a_definition_keeps_what_is_known_before() -> None:
    earlier = (EarlierTrial(parameters=POINTS[0], value=None),)
    definition = definition_of(try_first=POINTS, target=0.5, earlier=earlier)
    assert Definition.from_json(json.loads(json.dumps(definition.to_json()))) == definition


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


def test_the_trials_of_an_earlier_sweep_are_learnt_from(tmp_path: Path) -> None:
    space = {"lr": read_dimension("loguniform(1e-4, 1e-1)")}
    old = ended_sweep(tmp_path, sweep_of(space, sampler="random", trials=30))
    state = state_of(old.definition(), (event for event, _ in old.events_from()))
    definition = sweep_of({"lr": read_dimension("loguniform(1e-3, 1e-1)")}, sampler="tpe", trials=9)
    earlier = earlier_trials(state, definition)
    assert 10 < len(earlier) < 30
    assert all(float(trial.parameters["lr"]) >= 1e-3 for trial in earlier)
    close = 0
    for seed in range(5):
        learning = sweep_of(definition.space, sampler="tpe", trials=9, seed=seed, earlier=earlier)
        lr = float(suggester_of(learning).suggest(SweepState.new(learning))["lr"])
        close += 0.004 < lr < 0.025
    assert close >= 4
    with pytest.raises(UsageError, match="has another objective: accuracy, maximize"):
        earlier_trials(state, definition_of(space={"lr": "uniform(0, 1)"}))


JOB: dict[str, Any] = {
    "args": {"task": "digits"},
    "sweep": {
        "objective": {"metric": "val_loss", "goal": "minimize"},
        "space": {"lr": "loguniform(1e-4, 1e-1)", "batch-size": "int(16, 64, 16)"},
        "trials": 5,
    },
}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"try_first": [{"lr": 3}]}, r"try_first\[0\].lr: 3 is not in loguniform"),
        (
            {"try_first": [{"batch-size": 17}]},
            r"try_first\[0\].batch-size: 17 is not in int\(16, 64, 16\)",
        ),
        ({"try_first": [{"momentum": 0.9}]}, "'momentum' is not a setting of the space"),
        ({"try_first": {"lr": 0.1}}, "expected a list of points"),
        ({"try_first": [{"lr": 0.01}] * 6}, "has 6 points for 5 trials"),
        (
            {"method": "random", "learn_from": "digits-1"},
            "does not apply: this method does not learn from other trials",
        ),
        ({"space": {"a": "int(1, 9, 0)"}}, "the step 0 must be from 1 to 8"),
        ({"space": {"a": "logint(1, 9, 2)"}}, "logint takes two numbers"),
    ],
)
def test_what_does_not_fit_the_search_is_refused(change: dict[str, Any], words: str) -> None:
    with pytest.raises(SpecError, match=words):
        cloudtrain.load({**JOB, "sweep": {**JOB["sweep"], **change}})


def test_a_plan_reads_the_earlier_sweep_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    options = {"sampler": "random", "trials": 4, "metric": "val_loss", "goal": "minimize"}
    old = ended_sweep(
        tmp_path / "runs", sweep_of({"lr": read_dimension("loguniform(1e-4, 1e-1)")}, **options)
    )
    section = {
        **JOB["sweep"],
        "space": {"lr": "loguniform(1e-4, 1e-1)"},
        "learn_from": old.sweep_id,
    }
    (tmp_path / "source").mkdir()
    job = cloudtrain.load({**JOB, "source": "source", "sweep": section})
    definition = plan_sweep(job, "local", data_dir=str(tmp_path / "runs")).definition
    assert len(definition.earlier) == 4
