"""Searches that --set makes of a job, and the ranges of a space in braces."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloudtrain.spec.load import spec_from_values
from cloudtrain.spec.yaml_document import Document, parse_document, parse_scalar
from cloudtrain.sweeps.planning import read_objective, split_overrides, sweep_values

# `--set args.lr=1e-4,1e-3` makes a search of a job without a section for it.


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


# `{lr: loguniform(1e-4, 1e-1), b: 3}` is what it looks like, though YAML ends a word in braces at
# each comma.


def read(text: str) -> Document:
    return parse_document(text, name="job.yaml")


@pytest.mark.parametrize(
    ("written", "values"),
    [
        ("{lr: uniform(0, 1), b: 3}", {"lr": "uniform(0, 1)", "b": 3}),
        ("{lr: uniform(0,1)}", {"lr": "uniform(0,1)"}),
        (
            "{a: {lr: uniform(0, 1)}, b: choice(1, 2, 3)}",
            {"a": {"lr": "uniform(0, 1)"}, "b": "choice(1, 2, 3)"},
        ),
        ("{a: f(1, g(2, 3), 4), b: 1}", {"a": "f(1, g(2, 3), 4)", "b": 1}),
        ("{a: choice(x, x), x: 1}", {"a": "choice(x, x)", "x": 1}),
        ("{a: f(1,2,  3)}", {"a": "f(1,2,  3)"}),  # an argument arrives verbatim
        ("{a: choice(1,\n     2), b: 1}", {"a": "choice(1, 2)", "b": 1}),
        ("{a: 'choice(1, 2)', b: 1}", {"a": "choice(1, 2)", "b": 1}),
        ("{a: choice(), b: 1}", {"a": "choice()", "b": 1}),
        # Text that is not a call stays unchanged.
        ("{a: (1, b: 2)}", {"a": "(1", "b": "2)"}),
        ("{a: int(1, 2, b: 3}", {"a": "int(1", "2": None, "b": 3}),
        ("{a: choice(1, 2)x, b: 1}", {"a": "choice(1", "2)x": None, "b": 1}),
        ("{a: choice(1, 2), 3), b: 1}", {"a": "choice(1, 2)", "3)": None, "b": 1}),
        ('{a: "f(1", 2), b: 1}', {"a": "f(1", "2)": None, "b": 1}),
    ],
)
def test_a_call_in_braces_is_one_value(written: str, values: dict[str, Any]) -> None:
    assert read(f"space: {written}").values == {"space": values}
    assert parse_scalar(written) == values


@given(
    st.lists(
        st.lists(st.sampled_from(["1", "1e-4", "a", "0.5"]), min_size=1, max_size=4),
        min_size=1,
        max_size=4,
    )
)
def test_any_calls_beside_each_other_are_read_like_those_on_lines_of_their_own(
    calls: list[list[str]],
) -> None:
    pairs = [f"k{at}: choice({', '.join(words)})" for at, words in enumerate(calls)]
    assert read(f"s: {{{', '.join(pairs)}}}").values["s"] == read("\n".join(pairs)).values
