"""The golden requests and azure-ai-ml: it accepts each of them, and its own request is allowed."""

from __future__ import annotations

import io
import json
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cloudtrain.planning.plan import Plan
from tests.golden.cases import CASES, SWEEPS, plan_of

FOLDER = Path(__file__).parent
AZURE = [case for case, (provider, _) in CASES.items() if provider == "azure"]
AZURE_SWEEPS = [case for case, (provider, _) in SWEEPS.items() if provider == "azure"]
REGISTERED = (
    "azureml:/subscriptions/s/resourceGroups/g/providers/p/workspaces/w/environments/e/versions/1"
)
"""Reference to an image or a build after the SDK has registered it."""
HARD = [
    "plain",
    "${{inputs.labels}}",
    "$${{{name}}} \\${{x}} ${ {",
    "\"double\" 'single' `back` \\slash",
    "yes: [no, ~] # 1e3 !tag &anchor *alias %YAML",
    "😀 é – \u2028\ufeff\uffff",
    "\x01\t\r\n\x7f\x85\x9f",
]
"""Arguments that come out changed, or not at all, where somebody takes text for more than text."""


@pytest.fixture(autouse=True)
def without_its_noise() -> Iterator[None]:
    """Silence the SDK's warnings about its parts, at import and later."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pytest.importorskip("azure.ai.ml", reason='pip install "cloudtrain[azure]"')
        yield


def golden(case: str, home: Path) -> dict[str, Any]:
    """A golden request with its local files below `home`, where they are: the SDK looks."""
    text = (FOLDER / f"{case}.json").read_text().replace("/home/me", str(home))
    request: dict[str, Any] = json.loads(text)["request"]
    Path((request.get("trial") or request)["code"]).mkdir(parents=True)
    for folder in ("job/extra", "job/docker"):
        (home / folder).mkdir(parents=True)
    (home / "job" / "docker" / "Dockerfile").write_text("FROM scratch\n")
    (home / "table.csv").write_text("a,b\n")
    return request


def loaded(request: dict[str, Any]) -> Any:
    """The job as the SDK reads it."""
    from azure.ai.ml import load_job

    return load_job(io.StringIO(json.dumps(request)))


def body_of(job: Any) -> dict[str, Any]:
    """Return the body that it would PUT after all uploads."""
    job.environment = REGISTERED
    return serialized(job._to_job()._to_rest_object())


def serialized(rest: Any) -> dict[str, Any]:
    """Return a resource as the SDK sends it. Before 1.34 `as_dict` has its Python names."""
    document = rest.serialize() if hasattr(rest, "serialize") else rest.as_dict()
    body: dict[str, Any] = json.loads(json.dumps(document))
    return body


def sweep_body(case: str, home: Path) -> dict[str, Any]:
    """Return the body of a sweep job that the SDK would PUT after all uploads."""
    job = loaded(golden(case, home))
    job.trial.environment = job.trial.code = REGISTERED
    properties: dict[str, Any] = serialized(job._to_rest_object())["properties"]
    return properties


@pytest.mark.parametrize("case", AZURE_SWEEPS)
def test_the_sdk_sends_a_sweep_as_it_is_meant(case: str, tmp_path: Path) -> None:
    request = golden(case, tmp_path)
    sent = sweep_body(case, tmp_path / "again")
    assert sent["searchSpace"] == {
        name: _expression(item) for name, item in request["search_space"].items()
    }
    assert (
        sent["samplingAlgorithm"]["samplingAlgorithmType"].lower()
        == request["sampling_algorithm"]["type"]
    )
    assert sent["objective"] == {
        "goal": request["objective"]["goal"],
        "primaryMetric": "score" if case == "azure-random" else "val_loss",
    }
    limits = {
        "azure-random": (20, 4, "PT1H", "PT6H"),
        "azure-bayesian": (40, 1, "PT1H", None),
        "azure-grid": (6, 1, "PT1H", None),
        "azure-bandit": (40, 1, "PT1H", None),
    }
    names = ("maxTotalTrials", "maxConcurrentTrials", "trialTimeout", "timeout")
    assert tuple(sent["limits"].get(name) for name in names) == limits[case]
    for key, name in (("command", "command"), ("environment_variables", "environmentVariables")):
        assert sent["trial"][name] == request["trial"][key]
    assert sent["trial"]["distribution"] == {
        "distributionType": "PyTorch",
        "processCountPerInstance": 1,
    }
    assert sent["resources"] == sent["trial"]["resources"]
    assert sent["resources"].get("instanceType") == request["trial"]["resources"].get(
        "instance_type"
    )
    assert sent.get("computeId") == ("my-cluster" if case == "azure-grid" else None)
    assert sent.get("queueSettings") == (
        {"jobTier": "Spot"} if case in ("azure-bayesian", "azure-bandit") else None
    )
    policy = {"policyType": "Bandit", "slackFactor": 0.1, "delayEvaluation": 5}
    assert (sent.get("earlyTermination") or {}).items() >= (
        policy.items() if case == "azure-bandit" else set()
    )
    assert {name: item["uri"] for name, item in sent["outputs"].items()} == {
        name: item["path"] for name, item in request["outputs"].items()
    }


def _expression(item: dict[str, Any]) -> list[Any]:
    if item["type"] == "choice":
        return ["choice", [item["values"]]]
    return [item["type"], [item[key] for key in ("min_value", "max_value", "q") if key in item]]


@pytest.mark.parametrize("case", [*AZURE, *AZURE_SWEEPS])
def test_microsofts_own_schema_allows_it(case: str, tmp_path: Path) -> None:
    from tests.fakes.azure.rest_models import request_problems

    if case in AZURE:
        properties = body_of(loaded(golden(case, tmp_path)))["properties"]
        broken = {**properties, "limits": {"jobLimitsType": "Command", "timeout": 5}}
    else:
        properties = sweep_body(case, tmp_path)
        broken = {**properties, "limits": {"jobLimitsType": "Sweep", "maxTotalTrials": "many"}}
    assert request_problems("PutJob", {"properties": properties}) == []
    assert request_problems("PutJob", {"properties": broken}), "no mistake is found"


@pytest.mark.parametrize("text", HARD)
def test_an_argument_comes_through_the_sdk_unchanged(text: str, tmp_path: Path) -> None:
    request = golden("azure-spot", tmp_path)
    request["environment_variables"] |= {"TEXT": text}
    request["tags"] |= {"text": text}
    sent = body_of(loaded(request))["properties"]
    assert (sent["environmentVariables"]["TEXT"], sent["tags"]["text"]) == (text, text)


ACCEPTED: list[dict[str, Any]] = [
    {"queue_settings": {"priority": "High"}},
    {"inputs": {"labels": {"mode": "Direct"}}},
    {"outputs": {"more": {"mode": "mount"}, "table": {"type": "mltable", "name": "a-b"}, "x": {}}},
    {"tags": {"a": "5", "b": None}, "properties": {"a": "x"}, "description": "x"},
    {"environment_variables": {"A": "5"}, "parent_job_name": "x", "experiment_name": "a b"},
    {"services": {"s": {"type": "ssh", "nodes": "all", "port": 80, "ssh_public_keys": "x"}}},
    {"services": {"s": {"type": "tensor_board", "log_dir": "x"}, "t": {"type": "JupyterLab"}}},
    {"identity": {"client_id": "12345678-1234-1234-1234-123456789012"}},
    {"resources": {"docker_args": ["x"], "locations": ["x"], "properties": {"a": {"b": 1}}}},
    {"resources": {"docker_args": "x", "max_instance_count": 3}},
]
"""Members that a spec may set in a command job."""
WRONG: list[tuple[str, dict[str, Any]]] = [
    ("queue_settings.priority", {"queue_settings": {"priority": "urgent"}}),
    ("queue_settings.priority", {"queue_settings": {"priority": 5}}),
    ("queue_settings.tier", {"queue_settings": {"tier": "spot"}}),
    ("inputs.labels.mode", {"inputs": {"labels": {"mode": "rwmount"}}}),
    ("inputs.labels.mode", {"inputs": {"labels": {"mode": "eval_mount"}}}),
    ("inputs.labels.type", {"inputs": {"labels": {"type": "folder"}}}),
    ("outputs.x.mode", {"outputs": {"x": {"mode": "rwmount"}}}),
    ("outputs.x.mode", {"outputs": {"x": {"mode": "download"}}}),
    ("outputs.x.type", {"outputs": {"x": {"type": "folder"}}}),
    ("outputs.x.name", {"outputs": {"x": {"name": "a b"}}}),
    ("outputs.x.description", {"outputs": {"x": {"description": "x"}}}),
    ("outputs.x", {"outputs": {"x": "azureml://datastores/a/paths/b/"}}),
    ("outputs.x.path", {"outputs": {"x": {"path": 5}}}),
    ("tags.a", {"tags": {"a": 5}}),
    ("properties.a", {"properties": {"a": ["x"]}}),
    ("environment_variables", {"environment_variables": ["x"]}),
    ("description", {"description": ["x"]}),
    ("parent_job_name", {"parent_job_name": 5}),
    ("services.s", {"services": {"s": "ssh"}}),
    ("services.s.nodes", {"services": {"s": {"type": "ssh", "nodes": "some"}}}),
    ("services.s.port", {"services": {"s": {"type": "ssh", "port": "abc"}}}),
    ("services.s.log_dir", {"services": {"s": {"type": "vs_code", "log_dir": "x"}}}),
    ("services.s.url", {"services": {"s": {"type": "ssh", "url": "x"}}}),
    ("identity.resource_id", {"identity": {"resource_id": "/subscriptions/x"}}),
    ("identity.object_id", {"identity": {"object_id": 5}}),
    ("resources.docker_args", {"resources": {"docker_args": 5}}),
    ("resources.locations", {"resources": {"locations": "eastus"}}),
    ("resources.max_instance_count", {"resources": {"max_instance_count": "x"}}),
    ("resources.properties", {"resources": {"properties": "x"}}),
    ("notification_setting", {"notification_setting": {"emails": ["a@b.example"]}}),
]
"""Members that azure-ai-ml refuses, with the key that is wrong."""
REFUSED_BY_SERVICE: list[tuple[str, dict[str, Any]]] = [
    ("environment_variables.A", {"environment_variables": {"A": 5}}),
    ("services.s.properties.a", {"services": {"s": {"type": "ssh", "properties": {"a": 1}}}}),
    ("identity.client_id", {"identity": {"client_id": "mine"}}),
    ("inputs.x", {"inputs": {"x": {"mode": "direct"}}}),
    ("outputs.x.path", {"outputs": {"x": {"path": "s3://bucket/x"}}}),
]
"""Members that the SDK sends, and that the service refuses."""


def planned_with(members: dict[str, Any]) -> Plan:
    """The plan of a job with an input, an identity, and these members of the request."""
    job = {
        "name": "digits",
        "resources": {"instance": {"azure": "Standard_DS3_v2"}},
        "inputs": {"labels": "azureml:labels:1"},
        "limits": {"max_runtime": "1 h"},
        "azure": {"identity": "managed", "request": members},
    }
    return plan_of("azure", json.dumps(job))


def sdk_accepts(plan: Plan, home: Path) -> bool:
    """True if the SDK reads the request of a plan, and can turn it into a body."""
    from azure.ai.ml.exceptions import UserErrorException, ValidationException
    from marshmallow import ValidationError

    request = dict(plan.request.document)
    request["code"] = str(home)
    try:
        body_of(loaded(request))
    except (UserErrorException, ValidationException, ValidationError):
        return False
    return True


@pytest.mark.parametrize("members", ACCEPTED, ids=json.dumps)
def test_members_that_the_sdk_takes_are_no_mistakes(
    members: dict[str, Any], tmp_path: Path
) -> None:
    plan = planned_with(members)
    assert [issue.line() for issue in plan.issues if issue.is_error] == []
    assert sdk_accepts(plan, tmp_path)


@pytest.mark.parametrize(
    ("key", "members", "is_sent"),
    [
        *((*row, False) for row in WRONG),
        *((*row, True) for row in REFUSED_BY_SERVICE),
    ],
)
def test_members_that_are_refused_later_are_mistakes_at_their_line(
    key: str, members: dict[str, Any], is_sent: bool, tmp_path: Path
) -> None:
    plan = planned_with(members)
    assert [issue.field for issue in plan.issues if issue.is_error] == [f"azure.request.{key}"]
    assert sdk_accepts(plan, tmp_path) == is_sent
