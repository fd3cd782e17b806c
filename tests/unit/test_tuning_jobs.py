"""A `sweep` section as a SageMaker tuning job: what it cannot express is refused at its line, and money is held."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cloudtrain.contracts.launch import job_document
from cloudtrain.contracts.tuned import parameters_of, room_for, text_of
from cloudtrain.providers import get_provider
from cloudtrain.providers.aws.tuning_request import tuning_body, tuning_document
from cloudtrain.providers.cloud.sweep_budget import worst_usd
from cloudtrain.spec.load import override, spec_from_document
from cloudtrain.spec.search_space import override_of
from cloudtrain.spec.yaml_document import parse_document
from cloudtrain_launcher import contract
from cloudtrain_launcher.tuned import with_values
from tests.golden.cases import TUNING, plan_of

JOB = """
name: digits
args: {epochs: 3}
image: 123456789012.dkr.ecr.us-east-1.amazonaws.com/train:1
resources: {instance: {aws: ml.m5.xlarge}}
limits: {max_runtime: 1 h}
sweep:
  objective: {metric: val_loss, goal: minimize}
  space: {lr: "loguniform(1e-4, 1e-1)"}
  trials: 20
"""


def changed(*changes: str) -> str:
    """The job above with these overrides, as JSON, which YAML reads too."""
    document = override(parse_document(JOB, name="job.yaml"), list(changes))
    return json.dumps(document.values, default=list)


REFUSED = {
    "a machine is no argument": (['sweep.space={"resources.nodes": [1, 2]}'], "resources.nodes", "arguments alone"),
    "a variable is no argument": (['sweep.space={"env.SEED": [1, 2]}'], "env.SEED", "arguments alone"),
    "SageMaker's own name": (['sweep.space={"_tuning_x": [1, 2]}'], "_tuning_x", "as SageMaker's own"),
    "TPE": (["sweep.sampler=tpe"], "sweep.sampler", "no sampler tpe"),
    "quasi-random": (["sweep.method=random", "sweep.sampler=qmc"], "sweep.sampler", "no sampler qmc"),
    "a part of a grid": (
        ["sweep.method=grid", 'sweep.space={"a": [1, 2, 3]}', "sweep.trials=2"], "sweep.trials", "all 3 points",
    ),
    "a wide grid": (
        ["sweep.method=grid", 'sweep.space={"a": "int(1, 31)"}', "sweep.trials=null"], "sweep.space.a", "at most 30",
    ),
    "a thousand trials": (["sweep.trials=1000"], "sweep.trials", "more than a tuning job has: 750"),
    "retries of its own": (["sweep.retries=1"], "sweep.retries", "starts no failed trial again"),
    "rungs": (["sweep.early_stopping={grace: 2}"], "sweep.early_stopping", "compares no rungs"),
    "asha without an end": (["sweep.method=asha"], "sweep.early_stopping", "how long a trial is"),
    "asha with an eta": (
        ["sweep.method=asha", "sweep.early_stopping={max: 27, eta: 4}"], "sweep.early_stopping.eta", "decides itself",
    ),
    "promotion": (
        ["sweep.method=asha", "sweep.early_stopping={max: 27, promote: always}"],
        "sweep.early_stopping.promote", "brings no trial back",
    ),
    "too long a trial": (
        ["sweep.method=asha", "sweep.early_stopping={max: 20001}"], "sweep.early_stopping.max", "at most 20000",
    ),
    "AWS's own container": (["image=dlc:pytorch-2.8"], "image", "cannot name another command"),
    "TensorBoard": (["aws={tensorboard: true}"], "aws.tensorboard", "a tuning job uploads nothing"),
    "a shell": (["aws={remote_debug: true}"], "aws.remote_debug", "a tuning job allows no shell"),
    "hardware tests": (["aws={infra_check: true}"], "aws.infra_check", "a tuning job tests no hardware"),
    "many metrics": (
        [f"metrics={json.dumps({f'm{n}': f'm{n}: ([0-9]+)' for n in range(17)})}"], "metrics", "at most 20",
    ),
    "a minute": (["sweep.budget={max_time: 1 min}"], "sweep.budget.max_time", "a tuning job takes 2 min to 30 d"),
    "two months": (["sweep.budget={max_time: 60 d}"], "sweep.budget.max_time", "a tuning job takes 2 min to 30 d"),
    "too little money": (["sweep.budget={max_cost: 4 USD}"], "sweep.budget.max_cost", "20 trials may cost 4.75 USD"),
    "many variables": ([f"env={json.dumps({f'V{n}': '1' for n in range(49)})}"], "env", "at most 48"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_what_a_tuning_job_cannot_express_is_refused_at_its_line(case: str) -> None:
    changes, path, fragment = REFUSED[case]
    issues = get_provider("aws").native_sweeps().rules(plan_of("aws", changed(*changes)))
    assert any(each.field.endswith(path) and fragment in each.message for each in issues), issues
    is_newer = case == "many variables"  # a maximum of the service model, which may be older than the service
    assert any(each.is_error for each in issues) != is_newer


def test_too_long_an_id_is_refused_at_the_name() -> None:
    plan = replace(plan_of("aws", TUNING), run_id="a-name-of-forty-letters-and-then-some")
    [issue] = [each for each in get_provider("aws").native_sweeps().rules(plan) if each.is_error]
    assert issue.line().startswith("job.yaml:2:1: name: the sweep's id a-name-of")


def test_a_section_that_fits_is_not_refused() -> None:
    issues = get_provider("aws").native_sweeps().rules(plan_of("aws", TUNING))
    assert not [each for each in issues if each.is_error]


def test_the_time_of_the_budget_bounds_the_money() -> None:
    both = changed("sweep.parallel=2", "sweep.budget={max_cost: 1 USD, max_time: 1 h}")
    alone = changed("sweep.parallel=2", "sweep.budget={max_cost: 1 USD}")
    rules = get_provider("aws").native_sweeps().rules
    assert worst_usd(plan_of("aws", both)) == pytest.approx(2 * 0.23 * (3600 + 120) / 3600)
    assert not any(each.is_error for each in rules(plan_of("aws", both)))
    assert any(each.is_error for each in rules(plan_of("aws", alone)))


ARGUMENTS = {
    "none": "{}",
    "others before and after": "{epochs: 3, lr: 0.5, amp: true, sizes: [1, 2], name: x}",
    "off by default": "{amp: false, verbose: true}",
    "a long text before": f"{{note: '{'x' * 300}', lr: 1.10, amp: bf16}}",
}
CHOSEN: dict[str, dict[str, Any]] = {
    "a flag": {"lr": 0.00123, "batch-size": 32, "width": 64, "amp": True, "drop": 0.25},
    "no flag": {"lr": 1e-05, "batch-size": 16, "width": 8, "amp": False, "drop": 0.0},
    "a word": {"lr": 0.1, "batch-size": 16, "width": 512, "amp": "bf16", "drop": 0.5},
}


@pytest.mark.parametrize("arguments", ARGUMENTS)
@pytest.mark.parametrize("chosen", CHOSEN)
def test_a_trial_gets_the_arguments_that_one_of_our_own_gets(arguments: str, chosen: str, tmp_path: Path) -> None:
    values = CHOSEN[chosen]
    plain = override(parse_document(TUNING, name="job.yaml"), [f"args={ARGUMENTS[arguments]}"])
    portable = override(plain, [override_of(key, value) for key, value in values.items()])
    spec, _ = spec_from_document(portable, Path("/home/me/job"), look=False)
    base = plan_of("aws", json.dumps(plain.values, default=list))
    shared = tuning_document(base).to_json()
    texts = {**{key: text_of(value) for key, value in values.items()}, "_tuning_objective_metric": "score"}
    (tmp_path / "shared.json").write_text(json.dumps(shared))
    context = node(tmp_path / "shared.json", texts)
    job = contract.read_job(contract.with_trial(context, tmp_path).job_file)
    assert job.argv == list(spec.args.argv)
    assert job.values == json.loads(json.dumps(spec.args.values))
    assert {key: type(value) for key, value in job.values.items()} == {
        key: type(value) for key, value in json.loads(json.dumps(spec.args.values)).items()
    }
    assert job.run_id == "digits-k2x9-007-0a1b2c3d"
    assert parameters_of(shared["tuned"], texts) == values


def node(job_file: Path, texts: dict[str, str]) -> contract.NodeContext:
    return contract.NodeContext(
        platform="sagemaker",
        node_rank=0,
        nodes=1,
        master_addr="algo-1",
        master_port=7777,
        address="algo-1",
        interface="lo",
        output_dir="",
        model_dir="",
        checkpoint_dir="",
        inputs={},
        failure_file="",
        job_file=str(job_file),
        job_name="digits-k2x9-007-0a1b2c3d",
        hyperparameters=texts,
    )


def test_a_job_of_no_tuning_job_stays_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "job.json").write_text(json.dumps(job_document(plan_of("aws", TUNING)).to_json()))
    context = node(tmp_path / "job.json", {})
    assert contract.with_trial(context, tmp_path) == context


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        ({}, "has chosen no value for lr"),
        ({"lr": "fast"}, "value for lr is 'fast': expected a number"),
        ({"lr": "nan"}, "value for lr is 'nan': expected a number"),
        ({"lr": "0.1", "width": "8.5"}, "value for width is '8.5': expected a whole number"),
        ({"lr": "0.1", "width": "8", "batch-size": "17"}, "value for batch-size is '17', which is none of 16, 32"),
    ],
)
def test_a_value_that_the_section_does_not_have_fails_the_trial(texts: dict[str, str], message: str) -> None:
    chosen = {"batch-size": "16", "width": "8", "amp": "true", "drop": "0.1", **texts}
    with pytest.raises(RuntimeError, match=message):
        with_values(tuning_document(plan_of("aws", TUNING)).to_json(), chosen)


def test_a_whole_number_may_be_told_as_a_decimal_one() -> None:
    assert parameters_of({"width": {"type": "int"}}, {"width": "64.0"}) == {"width": 64}


def test_a_trial_is_the_training_job_that_the_same_plan_is_without_a_sweep() -> None:
    plan = plan_of("aws", TUNING)
    job, definition = get_provider("aws").render(plan).document, tuning_body(plan)["TrainingJobDefinition"]
    for name in ("RoleArn", "OutputDataConfig", "ResourceConfig", "StoppingCondition", "Environment"):
        assert definition[name] == job[name]
    assert [each["ChannelName"] for each in definition["InputDataConfig"]] == [
        each["ChannelName"] for each in job["InputDataConfig"]
    ]
    assert room_for(plan)[0].spec.name == plan.spec.name
