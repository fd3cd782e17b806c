"""The imitated sweep jobs refuse what Azure ML refuses: each rule with the page of its
documentation.
"""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.azure.cloud import AzureCloud
from tests.fakes.azure.fixtures import call, client, document, submit, words
from tests.fakes.azure.jobs import run_token, tracking_variables
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
        submit(client(still), document(still, "model", tmp_path))
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
    return status, words(answer)


REFUSED: dict[str, tuple[dict[tuple[str, ...], Any], str]] = {
    "grid of real numbers": ({("samplingAlgorithm",): GRID}, "can only be used with choice"),
    "Bayesian sampling of logarithms": (
        {("samplingAlgorithm",): BAYESIAN, ("searchSpace", "x"): ["loguniform", [-2, -1]]},
        "supports choice, uniform and quniform",
    ),
    "no trials": ({("limits", "maxTotalTrials"): 0}, "must be an integer between 1 and 1000"),
    "too many trials": ({("limits", "maxTotalTrials"): 1001}, "between 1 and 1000"),
    "half a minute": ({("limits", "trialTimeout"): "PT30S"}, "at least a minute"),
    "empty range": ({("searchSpace", "x"): ["uniform", [1, 1]]}, "min_value must be less"),
    "no step": ({("searchSpace", "x"): ["quniform", [1, 2]]}, "quniform takes 3 numbers"),
    "unknown expression": ({("searchSpace", "x"): ["zipf", [1]]}, "is not a parameter expression"),
    "no values": ({("searchSpace", "kind"): ["choice", [[]]]}, "lacks values"),
    "name with a dash": ({("searchSpace", "a-b"): X}, "letters, numbers and"),
    "setting outside the space": ({("searchSpace", "kind"): GONE}, "search_space.kind"),
    "trial without a command": ({("trial", "command"): GONE}, "'command' is a required property"),
}
"""Rules of "Hyperparameter tuning a model (v2)", "CLI (v2) sweep job YAML schema" and azure-ai-ml."""


@pytest.mark.parametrize("case", REFUSED)
def test_a_request_that_azure_ml_refuses_is_refused(
    still: AzureCloud, body: Body, case: str
) -> None:
    changes, fragment = REFUSED[case]
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
    assert "refused" not in still.service.sweeps


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
