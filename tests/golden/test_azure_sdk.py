"""The golden requests and azure-ai-ml: it accepts each of them, and its own request is allowed."""

from __future__ import annotations

import io
import json
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.golden.cases import CASES, SWEEPS

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
