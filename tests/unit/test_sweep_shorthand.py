"""`--set args.lr=1e-4,1e-3` makes a search of a job without a section for it."""

from __future__ import annotations

from typing import Any

import pytest

from cloudtrain.errors import UsageError
from cloudtrain.spec.load import spec_from_values
from cloudtrain.sweeps.shorthand import read_objective, split_overrides, sweep_values


@pytest.mark.parametrize(
    ("override", "value"),
    [
        ("args.lr=1e-4,1e-3,1e-2", [1e-4, 1e-3, 1e-2]),
        ("args.lr = 1e-4, 1e-3", [1e-4, 1e-3]),
        ("args.optimizer=adamw,sgd", ["adamw", "sgd"]),
        ("args.nesterov=true,false", [True, False]),
        ("args.batch_size=choice(16, 32)", "choice(16, 32)"),
        ("args.lr=loguniform(1e-4, 1e-1)", "loguniform(1e-4, 1e-1)"),
        ("resources.nodes=1,2", [1, 2]),
        ("env.SEED=int(0, 9)", "int(0, 9)"),
    ],
)
def test_an_override_of_several_values_is_a_setting_of_the_space(override: str, value: Any) -> None:
    assert split_overrides([override]) == ({override.partition("=")[0].strip(): value}, ())


@pytest.mark.parametrize(
    "override",
    [
        "args.lr=1e-4",
        "args.sizes=[1, 2]",  # a list is one value: the argument takes several
        "args.text='a, b'",
        'args.text="f(x)"',
        "args.map={a: 1, b: 2}",
        "args.lr=1e-4,",
        "args.lr=uniform(1e-4, 1",
        "tags.team=a,b",  # not a section whose settings a trial may change
        "name=a,b",
        "sweep.space.lr=choice(1, 2)",
        "args.lr",
    ],
)
def test_any_other_override_stays_what_it_is(override: str) -> None:
    assert split_overrides([override]) == ({}, (override,))


def test_settings_and_plain_overrides_may_stand_in_any_order() -> None:
    space, remaining = split_overrides(
        ["args.epochs=3", "args.lr=1,2", "name=x", "args.b=int(1, 4)", "args.lr=3,4"]
    )
    # The last one counts, as of any override.
    assert space == {
        "args.lr": [3, 4],
        "args.b": "int(1, 4)",
    }
    assert remaining == ("args.epochs=3", "name=x")


@pytest.mark.parametrize(
    ("overrides", "trials", "method", "count"),
    [
        (["args.lr=1,2", "args.b=choice(3, 4, 5)"], None, "grid", 6),
        (["args.lr=1,2", "args.b=uniform(0, 1)"], None, "bayesian", 20),
        (["args.lr=1,2"], 2, "bayesian", 2),
    ],
)
def test_lists_alone_are_a_grid_and_the_section_is_a_valid_one(
    overrides: list[str], trials: int | None, method: str, count: int, tmp_path: Any
) -> None:
    section = sweep_values(split_overrides(overrides)[0], trials=trials)
    sweep = spec_from_values({"sweep": section}, tmp_path)[0].sweep
    assert sweep is not None
    assert (sweep.method, sweep.trial_count) == (method, count)
    assert (sweep.objective.metric, sweep.objective.goal) == ("val_accuracy", "maximize")


@pytest.mark.parametrize(
    ("text", "metric", "goal"),
    [
        ("", "val_accuracy", "maximize"),
        ("val_loss", "val_loss", "minimize"),
        ("accuracy:maximize", "accuracy", "maximize"),
        ("a:b:minimize", "a:b", "minimize"),
    ],
)
def test_an_objective_is_a_metric_and_its_goal(text: str, metric: str, goal: str) -> None:
    assert read_objective(text) == {"metric": metric, "goal": goal}


@pytest.mark.parametrize("text", ["accuracy", "accuracy:", "accuracy:m", "accuracy:best", ":max"])
def test_an_objective_without_a_goal_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="does not say whether less or more of it is better"):
        read_objective(text)
