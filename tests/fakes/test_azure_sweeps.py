"""The imitated sweep jobs refuse what Azure ML refuses: each rule with the page of its
documentation.
"""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.azure.cloud import AzureCloud
from tests.fakes.azure.samples import call, client, document, submit
from tests.fakes.azure.tracking import run_token, tracking_variables
from tests.support.waiting import eventually

Body = dict[str, Any]
GONE = object()
X = ["uniform", [0.1, 1]]
KIND = ["choice", [["a", "b"]]]
GRID = {"samplingAlgorithmType": "Grid"}
BAYESIAN = {"samplingAlgorithmType": "Bayesian"}


@pytest.fixture
def body(still: AzureCloud, tmp_path: Path) -> Body:
    """A request that is taken, made of a command job's."""
    if "model" not in still.service.jobs:
        submit(client(still), document(still, "model", tmp_path, "talk"))
    job = copy.deepcopy(still.service.jobs["model"].properties)
    trial = {
        key: job.pop(key) for key in ("codeId", "command", "environmentId", "environmentVariables")
    }
    trial |= {"distribution": job.pop("distribution"), "resources": dict(job["resources"])}
    trial["command"] += " ${{search_space.x}} ${{search_space.kind}}"
    limits = {
        "jobLimitsType": "Sweep",
        "maxTotalTrials": 3,
        "maxConcurrentTrials": 2,
        "trialTimeout": "PT1H",
    }
    variables = {
        "objective": {"goal": "minimize", "primaryMetric": "loss"},
        "searchSpace": {"x": X, "kind": KIND},
    }
    sampling = {"samplingAlgorithmType": "Random", "seed": 1}
    whole = {
        **job,
        **variables,
        "jobType": "Sweep",
        "samplingAlgorithm": sampling,
        "trial": trial,
        "limits": limits,
    }
    return {"properties": whole}


def create(cloud: AzureCloud, name: str, body: Body) -> tuple[int, str]:
    path = f"{cloud.account.scope}/jobs/{name}?api-version=2024-01-01-preview"
    status, answer = call(cloud, "PUT", path, body)
    return status, str(answer.get("error", {}).get("message", ""))


TUNING = "Hyperparameter tuning a model (v2)"
YAML = "CLI (v2) sweep job YAML schema"
REFUSED: dict[str, tuple[str, dict[tuple[str, ...], Any], str]] = {
    "a grid of real numbers": (TUNING, {("samplingAlgorithm",): GRID}, "can only be used with choice"),
    "Bayesian sampling of logarithms": (
        TUNING,
        {("samplingAlgorithm",): BAYESIAN, ("searchSpace", "x"): ["loguniform", [-2, -1]]},
        "supports choice, uniform and quniform",
    ),
    "Bayesian sampling with early termination": (
        "BayesianParameterSampling (v1)",
        {("samplingAlgorithm",): BAYESIAN, ("earlyTermination",): {"policyType": "MedianStopping"}},
        "does not support early termination",
    ),
    "no seed for a grid": (YAML, {("samplingAlgorithm",): {**GRID, "sampler": "x"}}, "'sampler' was unexpected"),
    "a bandit without slack": (YAML, {("earlyTermination",): {"policyType": "Bandit"}}, "slack_factor or slack_amount"),
    "a whole truncation": (
        TUNING,
        {("earlyTermination",): {"policyType": "TruncationSelection", "truncationPercentage": 100}},
        "between 1 and 99",
    ),
    "no trials": (TUNING, {("limits", "maxTotalTrials"): 0}, "max_total_trials must be an integer between 1 and 1000"),
    "too many trials": (TUNING, {("limits", "maxTotalTrials"): 1001}, "between 1 and 1000"),
    "too many at once": (TUNING, {("limits", "maxConcurrentTrials"): 1001}, "max_concurrent_trials must be"),
    "more at once than in all": (TUNING, {("limits", "maxConcurrentTrials"): 4}, "must not exceed max_total_trials"),
    "half a minute": ("job_limits.py of azure-ai-ml", {("limits", "trialTimeout"): "PT30S"}, "at least a minute"),
    "an hour in words": (YAML, {("limits", "timeout"): "1h"}, "not a duration"),
    "an empty range": (YAML, {("searchSpace", "x"): ["uniform", [1, 1]]}, "min_value must be less"),
    "no step": (YAML, {("searchSpace", "x"): ["quniform", [1, 2]]}, "quniform takes 3 numbers"),
    "an expression that there is not": (YAML, {("searchSpace", "x"): ["zipf", [1]]}, "is no parameter expression"),
    "no values": (YAML, {("searchSpace", "kind"): ["choice", [[]]]}, "has no values"),
    "no space": (YAML, {("searchSpace",): {}}, "The search space is empty"),
    "a name with a dash": (
        "validate_key_contains_allowed_characters of azure-ai-ml", {("searchSpace", "a-b"): X}, "letters, numbers and",
    ),
    "a setting that is not in the space": (YAML, {("searchSpace", "kind"): GONE}, "refers to search_space.kind"),
    "no objective": (YAML, {("objective",): GONE}, "'objective' is a required property"),
    "a trial without a command": (YAML, {("trial", "command"): GONE}, "'command' is a required property"),
    "outputs of a trial": (YAML, {("trial", "outputs"): {}}, "'outputs' was unexpected"),
    "machines and a cluster": (
        "Model training on serverless compute", {("trial", "resources", "instanceType"): "Standard_DS3_v2"},
        "cannot be specified together with a compute target",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_a_request_that_azure_ml_refuses_is_refused(
    still: AzureCloud, body: Body, case: str
) -> None:
    page, changes, fragment = REFUSED[case]
    for path, new in changes.items():
        at = body["properties"]
        for key in path[:-1]:
            at = at[key]
        if new is GONE:
            del at[path[-1]]
        else:
            at[path[-1]] = new
    status, message = create(still, "refused", body)
    assert status == 400
    assert fragment in message
    assert "refused" not in still.service.sweeps, page


def test_trials_are_command_jobs_with_values_and_end_with_their_sweep(
    still: AzureCloud, body: Body
) -> None:
    assert create(still, "parent", body)[0] == 201
    assert create(still, "parent", body)[0] == 200, "the same request again changes nothing"
    changed = copy.deepcopy(body)
    changed["properties"]["limits"]["maxTotalTrials"] = 4
    assert "already exists" in create(still, "parent", changed)[1]
    sweep = still.service.sweeps["parent"]
    eventually(lambda: len(sweep.trials) == 2)
    ml = client(still)
    assert {child.name for child in ml.jobs.list(parent_job_name="parent")} == {
        "parent_0",
        "parent_1",
    }
    for trial in sweep.trials:
        x = trial.parameters["x"]
        kind = trial.parameters["kind"]
        assert 0.1 <= float(x) <= 1
        assert kind in ("a", "b")
        assert trial.properties["command"].endswith(f" {x} {kind}")
        assert trial.properties["environmentVariables"]["AZUREML_SWEEP_x"] == x
        assert trial.properties["limits"]["timeout"] == "PT1H"
        assert ml.jobs.get(trial.name).parameters == trial.parameters
    listed = {job.name for job in ml.jobs.list() if job is not None}
    assert "parent" in listed
    assert not listed & {"parent_0", "parent_1"}
    ml.jobs.begin_cancel("parent").wait()
    assert [sweep.status, *(trial.status for trial in sweep.trials)] == ["Canceled"] * 3


def test_metrics_are_taken_from_the_run_that_they_are_of(still: AzureCloud, body: Body) -> None:
    create(still, "metrics", body)
    sweep = still.service.sweeps["metrics"]
    eventually(lambda: len(sweep.trials) == 2)
    mine, second = sweep.trials
    variables = tracking_variables(mine, still.account)
    path = (
        variables["MLFLOW_TRACKING_URI"]
        .partition("?")[0]
        .removeprefix("azureml://")
        .partition("/")[2]
    )
    log = f"/{path.replace('/v1.0/', '/v2.0/', 1)}/api/2.0/mlflow/runs/log-metric"
    history = f"/{path.replace('mlflow/', 'history/', 1)}"
    report = {"run_id": mine.name, "key": "loss", "value": 0.5, "timestamp": 1, "step": 1}
    token = variables["MLFLOW_TRACKING_TOKEN"]
    status, answer = call(
        still,
        "GET",
        f"{history}/experimentids/{variables['MLFLOW_EXPERIMENT_ID']}/runs/{mine.name}/token",
        None,
        token,
    )
    assert status == 200
    assert call(still, "POST", log, report, answer["token"])[0] == 200
    assert call(still, "POST", log, report, run_token(second, still.account))[0] == 401
    assert call(still, "POST", log, {**report, "step": "first"}, token)[0] == 400
    assert mine.metrics == {"loss": [0.5]}
    sweep.cancel()
    eventually(lambda: sweep.has_ended)
    assert sweep.added == {"best_child_run_id": mine.name}
