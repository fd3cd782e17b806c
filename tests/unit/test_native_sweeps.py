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

REFUSED_BY_BOTH = {
    "a machine is not an argument": (
        ['sweep.space={"resources.nodes": [1, 2]}'],
        "resources.nodes",
        "varies only arguments",
    ),
    "a variable is not an argument": (
        ['sweep.space={"env.SEED": [1, 2]}'],
        "env.SEED",
        "varies only arguments",
    ),
    "retries": (["sweep.retries=1"], "sweep.retries", "starts no failed trial again"),
    "rungs": (["sweep.early_stopping={grace: 2}"], "sweep.early_stopping", "compares no rungs"),
    "TPE": (["sweep.sampler=tpe"], "sweep.sampler", "tpe"),
    "known points": (
        ["sweep.try_first=[{lr: 0.001}]"],
        "sweep.try_first",
        "chooses all values itself",
    ),
    "steps": (['sweep.space={"width": "int(8, 64, 8)"}'], "space.width", "has a step of 8"),
    "too little money": (
        ["sweep.budget={max_cost: 4 USD}"],
        "sweep.budget.max_cost",
        "20 trials may cost",
    ),
}


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
REFUSED_BY_AZURE = {
    "two names that become one": (
        ['sweep.space={"a-b": [1, 2], "a_b": [1, 2]}'], "a_b", "have the same name on Azure ML",
    ),
    "a quote in a word": (["""sweep.space={"a": ["it's", "b"]}"""], "sweep.space.a", "cannot be put into the command"),
    "a placeholder in a word": (['sweep.space={"a": ["${{name}}", "b"]}'], "sweep.space.a", "cannot be put into"),
    "a logarithm for bayesian": (
        ['sweep.space={"a": "loguniform(0.1, 1)"}'], "sweep.space.a", "takes choice, uniform and quniform",
    ),
    "a logarithm of whole numbers for bayesian": (
        ['sweep.space={"a": "logint(1, 9)"}'], "sweep.space.a", "takes choice, uniform and quniform",
    ),
    "a normal distribution for bayesian": (
        ['sweep.space={"a": "normal(0, 1)"}'], "sweep.space.a", "takes choice, uniform and quniform",
    ),
    "successive halving": (["sweep.method=asha"], "sweep.method", "lacks successive halving"),
    "a part of a grid": (
        ["sweep.method=grid", 'sweep.space={"a": [1, 2, 3]}', "sweep.trials=2"], "sweep.trials", "all 3 points",
    ),
    "too many trials": (["sweep.trials=1001"], "sweep.trials", "more than a sweep job has: 1000"),
    "too large a grid": (
        ["sweep.method=grid", 'sweep.space={"a": "int(1, 1001)"}', "sweep.trials=null"], "sweep.space", "1000",
    ),
    "a shell": (
        ["azure={services: [ssh], ssh_key: ssh-ed25519 AAAA me}"], "azure.services", "a sweep job cannot have",
    ),
    "a name that MLflow refuses": (
        ["entrypoint=train.py", 'sweep.objective.metric="loss{x}"'],
        "sweep.objective.metric", "not a valid metric name in MLflow",
    ),
    "the sampling": (
        ["azure={sweep_request: {sampling_algorithm: {type: grid}}}"],
        "azure.sweep_request.sampling_algorithm.type", "cloudtrain sets",
    ),
    "the job of the trials": (
        ["azure={sweep_request: {trial: {code: x}}}"], "azure.sweep_request.trial.code", "cloudtrain sets",
    ),
    "an unknown key": (
        ["azure={sweep_request: {sampling_algorithm: {rules: sobol}}}"],
        "azure.sweep_request.sampling_algorithm.rules", "did you mean 'rule'",
    ),
    "three months": (["sweep.budget={max_time: 90 d}"], "sweep.budget.max_time", "a sweep job takes 1 s to 60 d"),
}  # fmt: skip


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
OWN_RANGE = f"aws={{sweep_request: {{HyperParameterTuningJobConfig: {{{RANGES}}}}}}}"
REFUSED_BY_AWS = {
    "SageMaker's own name": (['sweep.space={"_tuning_x": [1, 2]}'], "_tuning_x", "as SageMaker's own"),
    "another sampler": (["sweep.sampler=tpe"], "sweep.sampler", "does not have the sampler tpe"),
    "a part of a grid": (
        ["sweep.method=grid", 'sweep.space={"a": [1, 2, 3]}', "sweep.trials=2"], "sweep.trials", "all 3 points",
    ),
    "a wide grid": (
        ["sweep.method=grid", 'sweep.space={"a": "int(1, 31)"}', "sweep.trials=null"], "sweep.space.a", "at most 30",
    ),
    "a normal distribution": (['sweep.space={"a": "normal(0, 1)"}'], "sweep.space.a", "does not have"),
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
    "the strategy": (
        ["aws={sweep_request: {HyperParameterTuningJobConfig: {Strategy: Grid}}}"],
        "aws.sweep_request.HyperParameterTuningJobConfig.Strategy", "cloudtrain sets",
    ),
    "the job of the trials": (
        ["aws={sweep_request: {TrainingJobDefinition: {RoleArn: x}}}"],
        "aws.sweep_request.TrainingJobDefinition.RoleArn", "cloudtrain sets",
    ),
    "the bound of a range": ([OWN_RANGE % "{Name: lr, MinValue: '0'}"], "MinValue", "cloudtrain sets"),
    "a range of no setting": ([OWN_RANGE % "{Name: momentum, ScalingType: Auto}"], "Ranges[0]", "MinValue"),
    "an unknown member": (
        ["aws={sweep_request: {WarmStart: {}}}"], "aws.sweep_request.WarmStart", "WarmStartConfig",
    ),
    "a member that lacks another": (
        ["aws={sweep_request: {WarmStartConfig: {WarmStartType: TransferLearning}}}"],
        "aws.sweep_request.WarmStartConfig", "ParentHyperParameterTuningJobs",
    ),
    "a minute": (["sweep.budget={max_time: 1 min}"], "sweep.budget.max_time", "a tuning job takes 2 min to 30 d"),
    "two months": (["sweep.budget={max_time: 60 d}"], "sweep.budget.max_time", "a tuning job takes 2 min to 30 d"),
    "many variables": ([f"env={json.dumps({f'V{n}': '1' for n in range(49)})}"], "env", "at most 48"),
}  # fmt: skip


REFUSED = {
    "aws": {**REFUSED_BY_BOTH, **REFUSED_BY_AWS},
    "azure": {**REFUSED_BY_BOTH, **REFUSED_BY_AZURE},
}


@pytest.mark.parametrize(
    ("cloud", "case"), [(cloud, case) for cloud in REFUSED for case in REFUSED[cloud]]
)
def test_what_a_cloud_cannot_express_is_refused_at_its_line(cloud: str, case: str) -> None:
    changes, path, fragment = REFUSED[cloud][case]
    issues = get_provider(cloud).native_sweeps().rules(plan_of(cloud, changed(*changes)))
    # A maximum of the service model, which may be older than the service.
    is_newer = case == "many variables"
    assert any(
        issue.field.endswith(path) and fragment in issue.message and issue.is_error != is_newer
        for issue in issues
    ), issues


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


@on_each_cloud
def test_such_members_need_a_native_sweep(cloud: str) -> None:
    members = {"aws": "WarmStartConfig: {}", "azure": "sampling_algorithm: {rule: sobol}"}
    text = changed(f"{cloud}={{sweep_request: {{{members[cloud]}}}}}")
    refused = [issue for issue in plan_of(cloud, text).issues if issue.is_error]
    assert [issue.field for issue in refused] == [f"{cloud}.sweep_request"]
    assert "engine: native" in refused[0].message


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
        with_values(render(plan_of("aws", TUNING)).job.to_json(), chosen)
