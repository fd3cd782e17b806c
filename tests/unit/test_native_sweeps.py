"""A `sweep` section that a cloud's own service carries out."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cloudtrain.errors import Issue
from cloudtrain.planning.launch import job_document
from cloudtrain.planning.target import Target
from cloudtrain.planning.tuned import parameters_of
from cloudtrain.providers import get_provider
from cloudtrain.providers.aws.tuning_request import render
from cloudtrain.providers.azure.sweep_request import expression
from cloudtrain.providers.shared.sweep_rules import worst_usd
from cloudtrain.spec.load import override, spec_from_document
from cloudtrain.spec.search_space import Choice, Integers, Normal, Uniform
from cloudtrain.spec.varied_settings import override_of
from cloudtrain.spec.yaml_document import parse_document
from cloudtrain_launcher import contract
from cloudtrain_wire.tuned_values import plain_name, text_of, with_values
from tests.golden.cases import AZURE_RANDOM, TUNING, plan_of
from tests.support.native_sweeps import changed

# A `sweep` section that a cloud's own service carries out, what is the same on every cloud: rules,
# money, trials.

FITS = {"aws": TUNING, "azure": AZURE_RANDOM}
on_each_cloud = pytest.mark.parametrize("cloud", FITS)


def errors(cloud: str, text: str) -> list[Issue]:
    return [
        issue
        for issue in get_provider(cloud).native_sweeps().rules(plan_of(cloud, text))
        if issue.is_error
    ]


@on_each_cloud
def test_a_section_that_fits_is_not_refused(cloud: str) -> None:
    for text in (FITS[cloud], changed(), changed("sweep.budget={max_cost: 20 USD}")):
        assert errors(cloud, text) == []


def test_a_target_is_sent_where_the_service_stops_at_one_and_refused_elsewhere() -> None:
    text = changed("sweep.objective.target=0.5")
    assert [issue.field for issue in errors("azure", text)] == ["sweep.objective.target"]
    assert errors("aws", text) == []
    config = (
        get_provider("aws")
        .native_sweeps()
        .render(plan_of("aws", text))
        .document["HyperParameterTuningJobConfig"]
    )
    assert config["TuningJobCompletionCriteria"] == {"TargetObjectiveMetricValue": 0.5}


@on_each_cloud
def test_a_job_with_such_a_section_is_rehearsed_as_it_is_submitted(cloud: str) -> None:
    plan = plan_of(cloud, changed("sweep.engine=native", "args.lr=0.01"))
    here = Target(provider="local", where="this machine", max_nodes=8, grace_seconds=30)
    assert replace(plan, host=here).request.job == plan.request.job


@on_each_cloud
def test_the_time_of_the_budget_bounds_the_money(cloud: str) -> None:
    assert not errors(
        cloud, changed("sweep.parallel=2", "sweep.budget={max_cost: 1 USD, max_time: 1 h}")
    )
    assert errors(cloud, changed("sweep.parallel=2", "sweep.budget={max_cost: 1 USD}"))


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


@on_each_cloud
@pytest.mark.parametrize("arguments", ARGUMENTS)
@pytest.mark.parametrize("chosen", CHOSEN)
def test_a_trial_gets_the_arguments_that_one_of_our_own_gets(
    cloud: str, arguments: str, chosen: str, tmp_path: Path
) -> None:
    values = CHOSEN[chosen]
    plain = override(parse_document(FITS[cloud], name="job.yaml"), [f"args={ARGUMENTS[arguments]}"])
    portable = override(plain, [override_of(key, value) for key, value in values.items()])
    spec, _ = spec_from_document(portable, Path("/home/me/job"), look=False)
    plan = plan_of(cloud, json.dumps(plain.values, default=list))
    shared = get_provider(cloud).native_sweeps().render(plan).job.to_json()
    texts = {key: text_of(value) for key, value in values.items()}
    shown = {**texts, "_tuning_objective_metric": "score"}  # SageMaker's own
    if cloud == "azure":
        shown = {plain_name(key): text for key, text in texts.items()}
    (tmp_path / "shared.json").write_text(json.dumps(shared))
    job = contract.read_job(
        contract.with_trial(node(tmp_path / "shared.json", shown), tmp_path).job_file
    )
    expected = json.loads(json.dumps(spec.args.values))
    assert job.argv == list(spec.args.argv)
    assert job.values == expected
    assert {key: type(value) for key, value in job.values.items()} == {
        key: type(value) for key, value in expected.items()
    }
    assert job.run_id == "digits-k2x9-007-0a1b2c3d"
    assert job.service_metric == ("score" if cloud == "azure" else "")
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


def test_a_job_that_no_such_service_starts_stays_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "job.json").write_text(json.dumps(job_document(plan_of("aws", TUNING)).to_json()))
    context = node(tmp_path / "job.json", {})
    assert contract.with_trial(context, tmp_path) == context


def test_a_whole_number_may_be_told_as_a_decimal_one() -> None:
    assert parameters_of({"width": {"type": "int"}}, {"width": "64.0"}) == {"width": 64}


# A `sweep` section as an Azure ML sweep job: what it cannot express is refused at its line, and
# money is held.

# Each after "CLI (v2) sweep job YAML schema" or "Hyperparameter tuning a model (v2)", but for
# MLflow's names.
EXPRESSIONS: dict[str, tuple[Any, str, dict[str, Any]]] = {
    "words": (Choice((1, True, "a")), "random", {"type": "choice", "values": ["1", "true", "a"]}),
    "real": (Uniform(0.5, 2.0), "random", {"type": "uniform", "min_value": 0.5, "max_value": 2.0}),
    "magnitudes": (Uniform(1.0, math.e, log=True), "random", {"type": "loguniform", "min_value": 0.0, "max_value": 1}),
    "around a mean": (Normal(0.5, 2.0), "random", {"type": "normal", "mu": 0.5, "sigma": 2.0}),
    "its logarithm": (Normal(-7.0, 1.0, log=True), "random", {"type": "lognormal", "mu": -7.0, "sigma": 1.0}),
    "whole": (Integers(1, 9), "random", {"type": "quniform", "min_value": 0.5, "max_value": 9.5, "q": 1}),
    "whole for bayesian": (Integers(1, 9), "bayesian", {"type": "quniform", "min_value": 1, "max_value": 9, "q": 1}),
    "whole in a grid": (Integers(1, 3), "grid", {"type": "choice", "values": [1, 2, 3]}),
    "whole magnitudes": (
        Integers(1, 9, log=True), "random",
        {"type": "qloguniform", "min_value": math.log(0.5), "max_value": math.log(9.5), "q": 1},
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", EXPRESSIONS)
def test_a_dimension_is_the_expression_with_the_same_values(case: str) -> None:
    dimension, method, expected = EXPRESSIONS[case]
    assert expression(dimension, method) == expected


# A `sweep` section as a SageMaker tuning job: what it cannot express is refused at its line, and
# money is held.

RANGES = "ParameterRanges: {ContinuousParameterRanges: [%s]}"
_CONFIG = "HyperParameterTuningJobConfig"
_PARENT = "ParentHyperParameterTuningJobs: [{HyperParameterTuningJobName: digits-1}]"
MEMBERS = (
    ("aws", f"{_CONFIG}: {{TrainingJobEarlyStoppingType: Auto}}", f"{_CONFIG} TrainingJobEarlyStoppingType"),
    ("aws", f"WarmStartConfig: {{WarmStartType: TransferLearning, {_PARENT}}}", "WarmStartConfig WarmStartType"),
    (
        "aws", f"{_CONFIG}: {{{RANGES % '{Name: lr, ScalingType: Auto}'}}}",
        f"{_CONFIG} ParameterRanges ContinuousParameterRanges 0 ScalingType",
    ),
    ("azure", "sampling_algorithm: {rule: sobol, logbase: 2}", "sampling_algorithm rule"),
)  # fmt: skip


@pytest.mark.parametrize(("cloud", "members", "place"), MEMBERS)
def test_members_of_the_service_s_own_sweep_reach_it(cloud: str, members: str, place: str) -> None:
    section = f"{cloud}={{sweep_request: {{{members}}}}}"
    text = changed(section, "sweep.engine=native", "sweep.method=random")
    sweeps = get_provider(cloud).native_sweeps()
    plan = plan_of(cloud, text)
    assert not [issue for issue in [*sweeps.rules(plan), *plan.issues] if issue.is_error]

    value: Any = sweeps.render(plan).document
    for name in place.split():
        value = value[int(name) if isinstance(value, list) else name]
    assert value in ("Auto", "TransferLearning", "sobol")


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
        with_values(render(plan_of("aws", TUNING)).job.to_json(), chosen)
