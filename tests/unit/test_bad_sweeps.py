"""Mistakes in a section `sweep`, and the searches that --set makes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloudtrain.errors import SpecError, UsageError
from cloudtrain.spec.load import load_spec, spec_from_values
from cloudtrain.spec.yaml_document import Document, parse_document, parse_scalar
from cloudtrain.sweeps.planning import read_objective, split_overrides, sweep_values

# Mistakes in a section `sweep` are refused at their line, all of them at once.

GOAL = "objective: {metric: val_loss, goal: minimize}"

HUGE = str(10**400)
SPACES = (
    """
{} | - | is empty
{lr: loguniform(0, 1)} | .lr | above 0
{n: logint(-4, 8)} | .n | above 0
{lr: uniform(2, 1)} | .lr | 2 is more than 1
{n: int(3, 3)} | .n | only one value
{n: int(0.5, 3)} | .n | whole numbers
{n: int(1, 9, 0)} | .n | the step 0
{n: logint(1, 9, 2)} | .n | two numbers
{lr: uniform(1)} | .lr | two numbers
{lr: uniform(0, .inf)} | .lr | up to 1e+100
{n: int(1, {HUGE})} | .n | up to 1e+18
{lr: uniform(0, {HUGE})} | .lr | up to 1e+100
{lr: loguniforms(1, 2)} | .lr | did you mean 'loguniform'
{lr: normal(0)} | .lr | mean and deviation
{lr: normal(0, 0)} | .lr | deviation must be above 0
{lr: normal(0, true)} | .lr | takes numbers
{lr: lognormal(0, 101)} | .lr | up to 100
{lr: {min: 0, max: 1}} | .lr | got a mapping
{lr: 0.1} | .lr | expected a range
{lr: fast} | .lr | is not a range
{args: {lr: [1, 2]}} | .args | got a mapping
{b: [16, 32, 16]} | .b | twice
{b: [1, "1"]} | .b | twice
{b: []} | .b | is empty
{b: [16, [32]]} | .b[1] | got a list
{lr: [1, 2], args.lr: [3, 4]} | .args.lr | repeats
{inputs.data: [./a, ./b], inputs.data.uri: [./c, ./d]} | .inputs.data.uri | overlaps
{limits.max_runtime: [1 h, 2 h]} | .limits.max_runtime | same for all
{secrets.TOKEN: [a, b]} | .secrets.TOKEN | same for all
{checkpoints.uri: [a, b]} | .checkpoints.uri | differs for each trial already
{aws.kms_key: [a, b]} | .aws.kms_key | same for all
{resource.nodes: [1, 2]} | .resource.nodes | did you mean 'resources'
{args.optimizer.lr: [1, 2]} | .args.optimizer.lr | part of an argument
{env.: [1, 2]} | .env. | empty part
{resources.node: [1, 2]} | .resources.node | did you mean 'nodes'
{resources.nodes: [0, 2]} | .resources.nodes[0] | at least 1
{resources.nodes: 'int(0, 2)'} | .resources.nodes | at least 1
{resources.spot: [true, maybe]} | .resources.spot[1] | true or false
{env.1A: [1, 2]} | .env.1A | variable name
{init: ['${inputs.none}', zeros]} | .init[0] | unknown input
""".strip()
    .replace("{HUGE}", HUGE)
    .splitlines()
)
"""Space, the field below `sweep.space` (- for the space itself), and words of the message."""


def mistakes(folder: Path, text: str) -> list[tuple[str, str, str]]:
    """Return the mistakes of a job.yaml: lines, fields and messages."""
    (folder / "train.py").write_text("")
    (folder / "job.yaml").write_text(text, encoding="utf-8")
    with pytest.raises(SpecError) as caught:
        load_spec(folder / "job.yaml")
    places = [issue.origin.replace(f"{folder}/", "") for issue in caught.value.issues]
    return [
        (place.rpartition(":")[0], issue.field, issue.message)
        for place, issue in zip(places, caught.value.issues, strict=True)
    ]


@pytest.mark.parametrize("row", SPACES, ids=lambda row: row[:60])
def test_a_wrong_space_is_refused_at_its_setting(row: str, tmp_path: Path) -> None:
    space, name, words = row.split(" | ")
    expected = name.removeprefix("-")
    text = f"entrypoint: train.py\nsweep:\n  {GOAL}\n  trials: 3\n  space: {space}\n"
    ((line, field, message),) = mistakes(tmp_path, text)
    assert (line, field) == ("job.yaml:5", f"sweep.space{expected}")
    assert words in message


RULES = {
    # the section without objective and space; after a | the job -> line, field, words
    "": (1, "trials", "is missing"),
    "trials: 0": (4, "trials", "at least 1"),
    "trials: 3\n  parallel: 101": (5, "parallel", "at most 100"),
    "trials: 3\n  method: baysian": (5, "method", "did you mean 'bayesian'"),
    "trials: 3\n  method: random\n  sampler: tpe": (6, "sampler", "does not work with"),
    "method: grid\n  sampler: tpe": (5, "sampler", "does not work with"),
    "trials: 3\n  early_stoping: {grace: 1}": (5, "early_stoping", "did you mean"),
    "trials: 3\n  early_stopping: {eta: 1}": (5, "early_stopping.eta", "at least 2"),
    "trials: 3\n  early_stopping: {grace: 9, max: 9}": (5, "early_stopping", "makes only 9"),
    "trials: 3\n  method: asha\n|args: {epochs: 4, eval-every: 4}": (5, "method", "makes only 1"),
    "trials: 3\n  early_stopping: {promote: always}\n|entrypoint: train.py": (
        5, "early_stopping.promote", "length of a complete trial",
    ),
    "trials: 3\n  engine: native\n  early_stopping: {promote: always, max: 9}": (
        6, "early_stopping.promote", "can only end them",
    ),
    "trials: 3\n  budget: {max_cost: 5}": (5, "budget.max_cost", "has no unit"),
    "trials: 3\n|args: [--lr, '1']": (3, "space.lr", "args is a list"),
    "trials: 3\n|args: {--lr: 1}": (3, "space.lr", "twice"),
    "trials: 3\n  try_first: [{lr: 3}]": (5, "try_first[0].lr", "is not in"),
    "trials: 3\n  try_first: [{momentum: 1}]": (5, "try_first[0].momentum", "not a setting"),
    "trials: 3\n  try_first: {lr: 1}": (5, "try_first", "a list of points"),
    "method: grid\n  try_first: [{lr: 1}]": (5, "try_first", "fixed order"),
    "trials: 3\n  engine: ray\n|resources: {nodes: 2}": (5, "engine", "one node"),
    "trials: 3\n  engine: ray\n  early_stopping: {max: 9, promote: always}": (
        6, "early_stopping.promote", "can only end them",
    ),
    "trials: 3\n  engine: ray\n  ray: {gpus: 0.5}\n|resources: {gpus: 2}": (
        6, "ray.gpus", "resources.gpus is 2",
    ),
}  # fmt: skip


@pytest.mark.parametrize("rule", RULES)
def test_a_contradiction_is_refused_at_its_line(rule: str, tmp_path: Path) -> None:
    section, _, job = rule.partition("|")
    expected_line, expected_field, words = RULES[rule]
    text = f"sweep:\n  {GOAL}\n  space: {{lr: [1, 2]}}\n  {section.rstrip()}\n{job}\n"
    ((line, field, message),) = mistakes(tmp_path, text)
    assert (line, field) == (f"job.yaml:{expected_line}", f"sweep.{expected_field}")
    assert words in message


@pytest.mark.parametrize(
    ("objective", "field"),
    [
        ("{goal: maximize}", ".metric"),
        ("{metric: loss}", ".goal"),
        ("{metric: loss, goal: max}", ".goal"),
        ("val_loss", ""),
        ("{metric: val_acuracy, goal: maximize}", ".metric"),
        # Reported with the progress, not a metric of an epoch.
        ("{metric: mfu, goal: maximize}", ".metric"),
    ],
)
def test_an_objective_that_is_never_reported_is_refused(
    objective: str, field: str, tmp_path: Path
) -> None:
    text = f"sweep:\n  objective: {objective}\n  trials: 3\n  space: {{lr: [1, 2]}}\n"
    assert [place for _, place, _ in mistakes(tmp_path, text)] == [f"sweep.objective{field}"]


def test_a_grid_takes_no_range_of_real_numbers_and_not_too_many_points(tmp_path: Path) -> None:
    text = (
        f"sweep:\n  {GOAL}\n  method: grid\n  space: {{lr: uniform(0, 1), steps: int(1, 20000)}}\n"
    )
    assert [field for _, field, _ in mistakes(tmp_path, text)] == ["sweep.space", "sweep.space.lr"]


def test_a_budget_in_money_and_the_native_engine_vary_no_machines(tmp_path: Path) -> None:
    section = "trials: 3\n  engine: native\n  budget: {max_cost: 9 USD}"
    space = "{lr: [1, 2], env.SEED: [1, 2], resources.nodes: [1, 2]}"
    text = f"sweep:\n  {GOAL}\n  {section}\n  space: {space}\n"
    fields = [field for _, field, _ in mistakes(tmp_path, text)]
    assert fields == [
        "sweep.space.env.SEED",
        "sweep.space.resources.nodes",
        "sweep.space.resources.nodes",
    ]


def test_all_mistakes_of_a_section_and_of_its_job_are_reported_at_once(tmp_path: Path) -> None:
    text = """\
name: digits
resources: {node: 2}
sweep:
  objective: {metric: val_loss, goal: less}
  method: asha
  sampler: gp
  trials: none
  space:
    lr: loguniform(0, 1)
    batch_size: []
    args.lr: [1]
  budget: {max_cost: 1}
"""
    assert [(place, field) for place, field, _ in mistakes(tmp_path, text)] == [
        ("job.yaml:2", "resources.node"),
        ("job.yaml:4", "sweep.objective.goal"),
        ("job.yaml:6", "sweep.sampler"),
        ("job.yaml:7", "sweep.trials"),
        ("job.yaml:9", "sweep.space.lr"),
        ("job.yaml:10", "sweep.space.batch_size"),
        ("job.yaml:11", "sweep.space.args.lr"),
        ("job.yaml:12", "sweep.budget.max_cost"),
    ]


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


@pytest.mark.parametrize("text", ["accuracy", "accuracy:", "accuracy:m", "accuracy:best", ":max"])
def test_an_objective_without_a_goal_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="does not say whether less or more of it is better"):
        read_objective(text)


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
