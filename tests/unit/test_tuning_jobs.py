"""A `sweep` section as a SageMaker tuning job: what it cannot express is refused at its line, and
money is held.
"""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from cloudtrain.planning.tuned import room_for
from cloudtrain.providers import get_provider
from cloudtrain.providers.aws.tuning_request import tuning_body, tuning_document
from cloudtrain.providers.shared.sweep_budget import worst_usd
from cloudtrain_launcher.tuned import with_values
from tests.golden.cases import TUNING, plan_of
from tests.support.native_sweeps import changed

REFUSED = {
    "SageMaker's own name": (['sweep.space={"_tuning_x": [1, 2]}'], "_tuning_x", "as SageMaker's own"),
    "another sampler": (["sweep.sampler=tpe"], "sweep.sampler", "does not have the sampler tpe"),
    "a part of a grid": (
        ["sweep.method=grid", 'sweep.space={"a": [1, 2, 3]}', "sweep.trials=2"], "sweep.trials", "all 3 points",
    ),
    "a wide grid": (
        ["sweep.method=grid", 'sweep.space={"a": "int(1, 31)"}', "sweep.trials=null"], "sweep.space.a", "at most 30",
    ),
    "a thousand trials": (["sweep.trials=1000"], "sweep.trials", "more than a tuning job has: 750"),
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
    "many variables": ([f"env={json.dumps({f'V{n}': '1' for n in range(49)})}"], "env", "at most 48"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_what_a_tuning_job_cannot_express_is_refused_at_its_line(case: str) -> None:
    changes, path, fragment = REFUSED[case]
    issues = get_provider("aws").native_sweeps().rules(plan_of("aws", changed(*changes)))
    assert any(issue.field.endswith(path) and fragment in issue.message for issue in issues), issues
    # A maximum of the service model, which may be older than the service.
    is_newer = case == "many variables"
    assert any(issue.is_error for issue in issues) != is_newer


def test_too_long_an_id_is_refused_at_the_name() -> None:
    plan = replace(plan_of("aws", TUNING), run_id="a-name-of-forty-letters-and-then-some")
    [issue] = [issue for issue in get_provider("aws").native_sweeps().rules(plan) if issue.is_error]
    assert issue.line().startswith("job.yaml:2:1: name: the sweep's id a-name-of")


def test_worst_cost_of_trials_is_bounded_by_the_time_of_the_budget() -> None:
    bounded = changed("sweep.parallel=2", "sweep.budget={max_cost: 1 USD, max_time: 1 h}")
    assert worst_usd(plan_of("aws", changed())) == pytest.approx(20 * 0.23 * (3600 + 720) / 3600)
    assert worst_usd(plan_of("aws", bounded)) == pytest.approx(2 * 0.23 * (3600 + 720) / 3600)


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        ({}, "has chosen no value for lr"),
        ({"lr": "fast"}, "value for lr is 'fast': expected a number"),
        ({"lr": "nan"}, "value for lr is 'nan': expected a number"),
        ({"lr": "0.1", "width": "8.5"}, "value for width is '8.5': expected a whole number"),
        (
            {"lr": "0.1", "width": "8", "batch-size": "17"},
            "value for batch-size is '17', which is none of 16, 32",
        ),
    ],
)
def test_a_value_that_the_section_does_not_have_fails_the_trial(
    texts: dict[str, str], message: str
) -> None:
    chosen = {"batch-size": "16", "width": "8", "amp": "true", "drop": "0.1", **texts}
    with pytest.raises(RuntimeError, match=message):
        with_values(tuning_document(plan_of("aws", TUNING)).to_json(), chosen)


def test_a_trial_is_the_training_job_that_the_same_plan_is_without_a_sweep() -> None:
    plan = plan_of("aws", TUNING)
    job = get_provider("aws").render(plan).document
    definition = tuning_body(plan)["TrainingJobDefinition"]
    for name in (
        "RoleArn",
        "OutputDataConfig",
        "ResourceConfig",
        "StoppingCondition",
        "Environment",
    ):
        assert definition[name] == job[name]
    assert [channel["ChannelName"] for channel in definition["InputDataConfig"]] == [
        channel["ChannelName"] for channel in job["InputDataConfig"]
    ]
    assert room_for(plan)[0].spec.name == plan.spec.name
