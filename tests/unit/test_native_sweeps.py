"""A `sweep` section that a cloud's own service carries out, what is the same on every cloud: rules,
money, trials.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from cloudtrain.cli.sweep import _as_json
from cloudtrain.cli.sweep_view import overview
from cloudtrain.errors import Issue
from cloudtrain.planning.job_document import job_document
from cloudtrain.planning.tuned import parameters_of, plain_name, sweep_of, text_of
from cloudtrain.providers import get_provider
from cloudtrain.spec.load import override, spec_from_document
from cloudtrain.spec.varied_settings import override_of
from cloudtrain.spec.yaml_document import parse_document
from cloudtrain.sweeps.planning import planned
from cloudtrain_launcher import contract
from tests.golden.cases import AZURE_RANDOM, TUNING, plan_of
from tests.support.native_sweeps import changed

FITS = {"aws": TUNING, "azure": AZURE_RANDOM}
on_each_cloud = pytest.mark.parametrize("cloud", FITS)

REFUSED = {
    "a machine is no argument": (
        'sweep.space={"resources.nodes": [1, 2]}',
        "resources.nodes",
        "varies only arguments",
    ),
    "a variable is no argument": (
        'sweep.space={"env.SEED": [1, 2]}',
        "env.SEED",
        "varies only arguments",
    ),
    "retries": ("sweep.retries=1", "sweep.retries", "starts no failed trial again"),
    "rungs": ("sweep.early_stopping={grace: 2}", "sweep.early_stopping", "compares no rungs"),
    "TPE": ("sweep.sampler=tpe", "sweep.sampler", "tpe"),
    "known points": (
        "sweep.try_first=[{lr: 0.001}]",
        "sweep.try_first",
        "chooses all values itself",
    ),
    "steps": ('sweep.space={"width": "int(8, 64, 8)"}', "space.width", "has a step of 8"),
    "too little money": (
        "sweep.budget={max_cost: 4 USD}",
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
@pytest.mark.parametrize("case", REFUSED)
def test_what_no_cloud_can_express_is_refused_at_its_line(cloud: str, case: str) -> None:
    change, path, fragment = REFUSED[case]
    issues = errors(cloud, changed(change))
    assert any(issue.field.endswith(path) and fragment in issue.message for issue in issues), issues


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
def test_a_plan_names_the_method_of_the_cloud(cloud: str) -> None:
    plan = plan_of(cloud, changed("sweep.engine=native"))
    name = get_provider(cloud).native_sweeps().method(plan)
    assert "bayesian" in name.lower()
    assert ("SageMaker" if cloud == "aws" else "Azure ML") in name
    shown = overview(planned(plan, sweep_of(plan)))
    assert f"  method      {name}" in shown
    assert "TPE" not in shown


@on_each_cloud
def test_a_dry_run_prints_the_request_of_the_service(cloud: str) -> None:
    plan = plan_of(cloud, changed("sweep.engine=native"))
    request = _as_json(planned(plan, sweep_of(plan)))
    assert request["request"] == get_provider(cloud).native_sweeps().render(plan).document
    assert json.loads(json.dumps(request["request"])) == request["request"]


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
