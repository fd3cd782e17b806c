"""A target of a sweep, and steps of whole numbers."""

from __future__ import annotations

import pytest

from cloudtrain.spec.search_space import Integers, points_of, read_dimension
from cloudtrain.sweeps.driver import to_be_stopped
from cloudtrain.sweeps.events import Extended
from cloudtrain.sweeps.state import SweepState
from cloudtrain.sweeps.suggest import suggester_of, value_at
from tests.support.sweep_lives import SweepLife, definition_of


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
