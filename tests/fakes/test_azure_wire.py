"""The imitation of Azure ML on the wire: it takes what Microsoft's schema allows, and refuses what
Azure ML would not run.
"""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from azure.core.exceptions import HttpResponseError

from tests.fakes.azure.account import LOW_PRIORITY, Cluster
from tests.fakes.azure.cloud import AzureCloud
from tests.fakes.azure.samples import (
    CURATED,
    Document,
    call,
    client,
    document,
    submit,
    words,
)
from tests.fakes.azure.schema import official_schema, official_violations

VERSION = "api-version=2025-01-01-preview"
Body = dict[str, Any]
pytestmark = pytest.mark.usefixtures("quick_retries")


@pytest.fixture
def ml(still: AzureCloud) -> Any:
    return client(still)


@pytest.fixture
def body(still: AzureCloud, ml: Any, tmp_path: Path) -> Body:
    """Return the SDK's request for a good job."""
    if "model" not in still.service.jobs:
        submit(ml, document(still, "model", tmp_path))
    return {"properties": copy.deepcopy(still.service.jobs["model"].properties)}


def put(cloud: AzureCloud, name: str, body: Body) -> tuple[int, str, str]:
    """Return status, code and message of the answer to a request for a job."""
    path = f"{cloud.account.scope}/jobs/{name}?{VERSION}"
    status, answer = call(cloud, "PUT", path, body)
    return status, answer.get("error", {}).get("code", ""), words(answer)


ELSEWHERE = (
    "/subscriptions/s/resourceGroups/g/providers/Microsoft.MachineLearningServices/workspaces/w"
)
GONE = object()
REFUSALS: dict[str, tuple[tuple[str, ...], object, str]] = {
    "no command": (("command",), GONE, "'command' is a required property"),
    "unknown key": (("zzz",), 1, "Could not find member 'zzz'"),
    "no nodes": (("resources", "instanceCount"), 0, "less than the minimum of 1"),
    "variable": (("environmentVariables", "N"), 1, "1 is not of type 'string'"),
    "tier": (("queueSettings",), {"jobTier": "Cheap"}, "'Cheap' is not one of"),
    "duration": (("limits", "timeout"), "1h", "not a duration in ISO 8601 format"),
    "code": (("codeId",), f"{ELSEWHERE}/codes/c/versions/1", "Code /subscriptions"),
    "environment": (("environmentId",), "azureml:AzureML-x:1", "Environment azureml"),
    "compute": (("computeId",), f"{ELSEWHERE}/computes/gpu-cluster", "Unknown compute target"),
    "placeholder": (("command",), "x ${{inputs.nothing}}", "neither an input nor an output"),
    "too many nodes": (("resources", "instanceCount"), 5, "only has 4 maximum nodes"),
    "size and cluster": (("resources", "instanceType"), "Standard_DS3_v2", "cannot be specified"),
    "queue and cluster": (("queueSettings",), {"jobTier": "Spot"}, "serverless jobs only"),
    "no machine": (("computeId",), GONE, "needs resources.instanceType"),
}
"""A place in a request, its new content, and words of the refusal."""


@pytest.mark.parametrize("case", REFUSALS)
def test_azure_ml_refuses_what_it_would_not_run(still: AzureCloud, body: Body, case: str) -> None:
    (*place, key), content, words = REFUSALS[case]
    at = body["properties"]
    for name in place:
        at = at[name]
    if content is GONE:
        del at[key]
    else:
        at[key] = content
    status, code, message = put(still, "refused", body)
    assert status in (400, 404)
    assert code == "UserError"
    assert words in message
    assert "refused" not in still.service.jobs


@pytest.mark.parametrize("name", ["-x", "a.b", "x" * 256])
def test_job_names_are_validated(still: AzureCloud, body: Body, name: str) -> None:
    status, code, message = put(still, quote(name), body)
    assert (status, code) == (400, "UserError")
    assert "alphanumeric" in message


def test_a_cluster_that_is_not_ready_and_a_quota_that_is_used_up_take_no_job(
    still: AzureCloud, body: Body
) -> None:
    still.account.computes["broken"] = Cluster(state="Failed")
    body["properties"]["computeId"] = f"{still.account.scope}/computes/broken"
    status, _, message = put(still, "broken", body)
    assert status == 400
    assert "provisioning state Failed" in message

    still.account.quotas = {"standardNDSH100v5Family": 200, LOW_PRIORITY: 200}
    del body["properties"]["computeId"]
    body["properties"]["resources"] |= {
        "instanceType": "Standard_ND96isr_H100_v5",
        "instanceCount": 2,
    }
    for tier in ({}, {"queueSettings": {"jobTier": "Spot"}}):
        body["properties"] |= tier
        assert put(still, f"fits-{len(tier)}", body)[0] == 201
        status, _, message = put(still, "too-much", body)
        assert status == 400
        assert "vCPU quota of 200" in message


def test_putting_a_name_again_succeeds_for_the_same_job_only(
    still: AzureCloud, ml: Any, tmp_path: Path
) -> None:
    job = document(still, "twice", tmp_path)
    submit(ml, job)
    assert submit(ml, {**job, "tags": {"new": "tag"}}).tags == {"new": "tag"}
    with pytest.raises(HttpResponseError, match="A job with this name already exists"):
        submit(ml, {**job, "command": "other"})
    assert still.service.jobs["twice"].properties["command"] == job["command"]


def test_a_request_without_a_valid_token_or_version_is_rejected(still: AzureCloud) -> None:
    path = f"{still.account.scope}/jobs/model?{VERSION}"
    expired = still.account.tokens.bearer(still.endpoint.url, -1)
    foreign = still.account.tokens.bearer("https://x.net")
    for token in ("", "x", expired, foreign):
        assert call(still, "GET", path, token=token)[0] == 401
    for wrong in (path.partition("?")[0], path.replace("2025-01-01", "2025-01-02")):
        assert call(still, "GET", wrong)[0] == 400
    assert call(still, "GET", f"{still.account.scope}/models?{VERSION}")[0] == 404


BODIES: dict[str, Document] = {
    "cluster": {},
    "curated": {"environment": CURATED},
    "single": {"distribution": None, "inputs": {}, "tags": None},
    "identity": {"identity": {"type": "managed"}},
    "serverless": {
        "compute": None,
        "resources": {"instance_type": "Standard_ND96isr_H100_v5", "instance_count": 2},
        "queue_settings": {"job_tier": "spot"},
    },
}


@pytest.mark.parametrize("case", BODIES)
def test_requests_that_are_taken_fit_microsofts_schema(
    still: AzureCloud, ml: Any, tmp_path: Path, case: str
) -> None:
    official = official_schema()
    if official is None:
        pytest.skip("Microsoft's schema is not at hand: name its folder by CLOUDTRAIN_AZURE_SCHEMA")
    job = document(still, f"sent-{case}", tmp_path, **BODIES[case])
    submit(ml, {key: value for key, value in job.items() if value is not None})
    assert official_violations(official, still.service.jobs[f"sent-{case}"].properties) == []
