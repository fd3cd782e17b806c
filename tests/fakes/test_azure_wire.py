"""The imitation of Azure ML on the wire: what it refuses, how jobs are looked up, every fault as
the SDK meets it.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from azure.core.exceptions import (
    AzureError,
    ClientAuthenticationError,
    HttpResponseError,
    ResourceNotFoundError,
    ServiceResponseError,
)

from tests.fakes.azure.account import DEDICATED, LOW_PRIORITY, PROVIDER, Cluster
from tests.fakes.azure.cloud import AzureCloud
from tests.fakes.azure.samples import CURATED, TAG, Document, call, client, document, submit
from tests.fakes.azure.schema import official_schema, official_violations, violations
from tests.fakes.faults import FaultKind
from tests.fakes.messages import Call

VERSION = "api-version=2025-01-01-preview"
Body = dict[str, Any]
pytestmark = pytest.mark.usefixtures("quick_retries")


@pytest.fixture
def ml(still: AzureCloud) -> Any:
    return client(still)


def job_path(cloud: AzureCloud, name: str) -> str:
    return f"{cloud.account.scope}/jobs/{name}?{VERSION}"


@pytest.fixture
def body(still: AzureCloud, ml: Any, tmp_path: Path, request: pytest.FixtureRequest) -> Body:
    """Return the SDK's request for a good job."""
    if "model" not in still.service.jobs:
        submit(ml, document(still, "model", tmp_path, "talk"))
    return {"properties": copy.deepcopy(still.service.jobs["model"].properties)}


def put(*path: str, to: Any) -> Callable[[Body], None]:
    def change(body: Body) -> None:
        at = body["properties"]
        for key in path[:-1]:
            at = at.setdefault(key, {})
        if to is None:
            del at[path[-1]]
        else:
            at[path[-1]] = to

    return change


def serverless(**resources: Any) -> Callable[[Body], None]:
    def change(body: Body) -> None:
        del body["properties"]["computeId"]
        body["properties"]["resources"] |= resources

    return change


ELSEWHERE = (
    "/subscriptions/s/resourceGroups/g/providers/Microsoft.MachineLearningServices/workspaces/w"
)
STORE = "azureml://datastores/workspaceblobstore/paths"
FOLDER = {"jobInputType": "uri_folder", "mode": "Download"}
REFUSALS: dict[str, tuple[Callable[[Body], None], int, str, str]] = {
    "no command": (
        put("command", to=None),
        400,
        "ValidationError",
        "'command' is a required property",
    ),
    "unknown key": (put("zzz", to=1), 400, "ValidationError", "'zzz' was unexpected"),
    "unknown resource": (
        put("resources", "gpu", to=1),
        400,
        "ValidationError",
        "'gpu' was unexpected",
    ),
    "count as words": (
        put("resources", "instanceCount", to="two"),
        400,
        "ValidationError",
        "is not of type 'integer'",
    ),
    "no nodes": (
        put("resources", "instanceCount", to=0),
        400,
        "ValidationError",
        "less than the minimum of 1",
    ),
    "shared memory": (
        put("resources", "shmSize", to="lots"),
        400,
        "ValidationError",
        "'lots' does not match",
    ),
    "variable": (
        put("environmentVariables", "N", to=1),
        400,
        "ValidationError",
        "1 is not of type 'string'",
    ),
    "tag": (put("tags", "n", to=1), 400, "ValidationError", "1 is not of type 'string'"),
    "distribution": (
        put("distribution", "distributionType", to="Torch"),
        400,
        "ValidationError",
        "is not one of",
    ),
    "input mode": (
        put("inputs", "train", "mode", to="RO"),
        400,
        "ValidationError",
        "not valid under any",
    ),
    "tier": (
        put("queueSettings", to={"jobTier": "Cheap"}),
        400,
        "ValidationError",
        "'Cheap' is not one of",
    ),
    "job type": (put("jobType", to="Spark"), 400, "ValidationError", "'Spark' is not one of"),
    "duration": (
        put("limits", "timeout", to="1h"),
        400,
        "ValidationError",
        "not a duration in ISO 8601 format",
    ),
    "no time": (
        put("limits", "timeout", to="PT0S"),
        400,
        "ValidationError",
        "of at least one second",
    ),
    "no such code": (
        put("codeId", to=f"{ELSEWHERE}/codes/c/versions/1"),
        404,
        "UserError",
        "Code /subscriptions",
    ),
    "no such environment": (
        put("environmentId", to="azureml:AzureML-x:1"),
        404,
        "UserError",
        "Environment azureml",
    ),
    "no such compute": (
        put("computeId", to=f"{ELSEWHERE}/computes/gpu-cluster"),
        404,
        "UserError",
        "Compute gpu",
    ),
    "placeholder": (
        put("command", to="x ${{inputs.nothing}}"),
        400,
        "UserError",
        "neither an input nor an output",
    ),
    "sweep": (
        put("command", to="x ${{search_space.lr}}"),
        400,
        "UserError",
        "neither an input nor an output",
    ),
    "no such datastore": (
        put("inputs", "train", to={**FOLDER, "uri": "azureml://datastores/none/paths/x"}),
        400,
        "UserError",
        "Could not find datastore: none",
    ),
    "another workspace": (
        put(
            "inputs",
            "train",
            to={**FOLDER, "uri": f"azureml:/{ELSEWHERE}/datastores/workspaceblobstore/paths/x"},
        ),
        400,
        "UserError",
        "is not the one of this workspace",
    ),
    "foreign input": (
        put("inputs", "train", to={**FOLDER, "uri": "https://example.com/x"}),
        400,
        "UserError",
        "leads out of this imitation",
    ),
    "too many nodes": (
        put("resources", "instanceCount", to=5),
        400,
        "UserError",
        "Requested 5 nodes but AzureMLCompute cluster only has 4 maximum nodes.",
    ),
    "size and cluster": (
        put("resources", "instanceType", to="Standard_DS3_v2"),
        400,
        "UserError",
        "cannot be specified together with a compute target",
    ),
    "queue and cluster": (
        put("queueSettings", to={"jobTier": "Spot"}),
        400,
        "UserError",
        "serverless jobs only",
    ),
    "no machine": (serverless(), 400, "UserError", "needs resources.instanceType"),
    "unknown size": (
        serverless(instanceType="Standard_X1"),
        400,
        "UserError",
        "VM size Standard_X1 is not supported",
    ),
}


@pytest.mark.parametrize("case", REFUSALS)
def test_azure_ml_refuses_what_it_would_not_run(still: AzureCloud, body: Body, case: str) -> None:
    change, status, code, words = REFUSALS[case]
    change(body)
    got, answer = call(still, "PUT", job_path(still, "refused"), body)
    assert (got, answer["error"]["code"]) == (status, code)
    assert words in answer["error"]["message"]
    assert "refused" not in still.service.jobs


@pytest.mark.parametrize("name", ["-x", "a.b", "a b", "x" * 256, "\u00e9"])
def test_job_names_are_validated(still: AzureCloud, body: Body, name: str) -> None:
    status, answer = call(still, "PUT", job_path(still, quote(name)), body)
    assert (status, answer["error"]["code"]) == (400, "ValidationError")
    assert "alphanumeric" in answer["error"]["message"]


def test_a_cluster_that_is_not_ready_and_a_quota_that_is_used_up_take_no_job(
    still: AzureCloud, ml: Any, body: Body
) -> None:
    still.account.computes["broken"] = Cluster(state="Failed")
    body["properties"]["computeId"] = f"{still.account.scope}/computes/broken"
    status, answer = call(still, "PUT", job_path(still, "broken"), body)
    assert (status, "provisioning state Failed" in answer["error"]["message"]) == (400, True)

    family = "standardNDSH100v5Family"
    still.account.quotas[family] = 200
    del body["properties"]["computeId"]
    body["properties"]["resources"] |= {
        "instanceType": "Standard_ND96isr_H100_v5",
        "instanceCount": 2,
    }
    assert call(still, "PUT", job_path(still, "fits"), body)[0] == 201
    place = f"/subscriptions/{still.account.subscription}/providers/{PROVIDER}/locations/eastus/usages?{VERSION}"
    listed = call(still, "GET", place)[1]["value"]
    usages = {
        usage["name"]["value"]: usage for usage in listed if "/workspaces/" not in usage["id"]
    }
    words = "Standard NDSH100v5 Family Cluster Dedicated vCPUs"
    assert (usages[words]["currentValue"], usages[words]["limit"]) == (192, 200)
    total = "Total Cluster Dedicated Regional vCPUs"
    assert usages[total]["currentValue"] >= 192  # with jobs of other tests
    assert usages[total]["type"] == f"{PROVIDER}/{DEDICATED}/usages"
    assert len([*ml.compute.list_usage()]) == len(listed)
    status, answer = call(still, "PUT", job_path(still, "too-much"), body)
    assert (status, answer["error"]["code"]) == (400, "UserError")
    assert "a Standard NDSH100v5 family vCPU quota of 200" in answer["error"]["message"]
    body["properties"]["queueSettings"] = {"jobTier": "Spot"}  # these have separate quotas
    assert call(still, "PUT", job_path(still, "spot"), body)[0] == 201
    still.account.quotas[LOW_PRIORITY] = 200
    status, answer = call(still, "PUT", job_path(still, "too-much-spot"), body)
    assert (status, "a total low priority vCPU quota of 200" in answer["error"]["message"]) == (
        400,
        True,
    )
    sizes = {size.name: size.family for size in ml.compute.list_sizes()}
    assert sizes["Standard_ND96isr_H100_v5"] == family


def test_putting_a_name_again_succeeds_for_the_same_job_only(
    still: AzureCloud, ml: Any, tmp_path: Path
) -> None:
    job = document(still, "twice", tmp_path, "talk")
    submit(ml, job)
    assert submit(ml, {**job, "tags": {"new": "tag"}}).tags == {"new": "tag"}
    with pytest.raises(HttpResponseError, match="A job with this name already exists"):
        submit(ml, {**job, "command": "other"})
    assert still.service.jobs["twice"].properties["command"] == job["command"]


def test_a_request_without_a_valid_token_is_rejected(still: AzureCloud) -> None:
    path = job_path(still, "model")
    expired, foreign = (
        still.account.tokens.bearer(*claims)
        for claims in ((still.endpoint.url, -1), ("https://x.net",))
    )
    for token in ("", "x", expired):
        assert (
            call(still, "GET", path, token=token)[1]["error"]["code"]
            == "InvalidAuthenticationToken"
        )
    status, answer = call(still, "GET", path, token=foreign)
    assert (status, answer["error"]["code"]) == (401, "InvalidAuthenticationTokenAudience")
    status, answer = call(still, "GET", path.partition("?")[0])
    assert (status, answer["error"]["code"]) == (400, "MissingApiVersionParameter")
    status, answer = call(still, "GET", path.replace("2025-01-01", "2025-01-02"))
    assert (status, answer["error"]["code"]) == (400, "NoRegisteredProviderFound")
    assert call(still, "GET", f"{still.account.scope}/models?{VERSION}")[0] == 404


@pytest.mark.parametrize(
    ("names", "code"),
    [
        ({"subscription": "00000000-0000-0000-0000-000000000000"}, "SubscriptionNotFound"),
        ({"resource_group": "other"}, "ResourceGroupNotFound"),
        ({"workspace": "other"}, "ResourceNotFound"),
    ],
    ids=["subscription", "group", "workspace"],
)
def test_what_does_not_exist_is_not_found(
    still: AzureCloud, names: dict[str, str], code: str
) -> None:
    ml = client(still, **names)
    with pytest.raises(ResourceNotFoundError, match=rf"\({code}\)"):
        ml.jobs.get("x")


def test_without_a_login_there_is_no_token(still: AzureCloud, ml: Any) -> None:
    still.log_out()
    with pytest.raises(ClientAuthenticationError, match="az login"):
        client(still).jobs.get("model")
    still.log_out(and_in=True)
    with pytest.raises(ResourceNotFoundError, match="Job nothing not found"):
        client(still).jobs.get("nothing")


def test_jobs_are_listed_by_tag_page_by_page(still: AzureCloud, ml: Any, tmp_path: Path) -> None:
    for number in range(5):
        submit(
            ml, document(still, f"listed-{number}", tmp_path, "talk", tags={"listed": str(number)})
        )
    still.account.job_page = 2
    still.endpoint.reset()
    names = [job.name for job in ml.jobs.list(tag="listed")]
    assert names == [f"listed-{number}" for number in (4, 3, 2, 1, 0)]
    assert still.endpoint.calls == [("arm", "ListJobs")] * 3
    assert [job.name for job in ml.jobs.list(tag="no-such-tag")] == []
    assert {job.tags["listed"] for job in ml.jobs.list(tag="listed")} == set("01234")


def test_computes_datastores_and_the_workspace_are_shown(still: AzureCloud, ml: Any) -> None:
    spot = ml.compute.get("gpu-spot")
    assert (spot.tier.lower(), spot.size, spot.max_instances) == (
        "low_priority",
        "Standard_NC24ads_A100_v4",
        4,
    )
    with pytest.raises(ResourceNotFoundError, match="Compute nothing could not be found"):
        ml.compute.get("nothing")
    store = ml.datastores.get("workspaceblobstore", include_secrets=True)
    assert store.container_name == still.container
    assert "&srt=co&ss=bf&sp=rcuwdl&" in store.credentials.sas_token
    assert [store.name for store in ml.datastores.list()] == [
        "workspaceblobstore",
        "workspaceartifactstore",
    ]
    assert ml.workspaces.get(still.account.workspace).location == "eastus"


BODIES: dict[str, Document] = {
    "cluster": {},
    "curated": {"environment": CURATED},
    "registry": {
        "environment": (
            "azureml://registries/azureml/environments/AzureML-acpt-pytorch-2.8-cuda12.6/versions/12"
        )
    },
    "single": {"distribution": None, "inputs": {}, "tags": None},
    "value": {
        "inputs": {
            "train": {"type": "uri_file", "path": f"{STORE}/a", "mode": "download"},
            "lr": 0.1,
        }
    },
    "upload": {"outputs": {"out": {"type": "uri_folder", "mode": "upload"}}},
    "identity": {"identity": {"type": "managed"}},
    "serverless": {
        "compute": None,
        "resources": {
            "instance_type": "Standard_ND96isr_H100_v5",
            "instance_count": 2,
            "docker_args": "--ipc=host",
        },
        "queue_settings": {"job_tier": "spot"},
    },
}


@pytest.mark.parametrize("case", BODIES)
def test_what_the_sdk_sends_fits_this_schema_and_microsofts_own(
    still: AzureCloud, ml: Any, tmp_path: Path, case: str
) -> None:
    job = document(still, f"sent-{case}", tmp_path, "talk", **BODIES[case])
    submit(ml, {key: value for key, value in job.items() if value is not None})
    ((_, sent),) = [item for item in still.endpoint.sent if item[0].operation == "PutJob"]
    assert violations(sent) == []
    official = official_schema()
    if official is None:
        pytest.skip("Microsoft's schema is not at hand: name its folder by CLOUDTRAIN_AZURE_SCHEMA")
    assert official_violations(official, sent["properties"]) == []
    for stored in still.service.jobs.values():
        assert official_violations(official, stored.properties) == []


@pytest.mark.parametrize("kind", ["throttle", "error", "lost", "refused_lost", "slow"])
def test_the_sdk_survives_transient_faults(
    still: AzureCloud, ml: Any, tmp_path: Path, kind: FaultKind
) -> None:
    name = f"passes-{kind}"
    still.endpoint.fault(kind, "arm", "PutJob", seconds=0.01)
    assert submit(ml, document(still, name, tmp_path, "talk")).name == name
    tries = still.endpoint.calls.count(Call("arm", "PutJob"))
    assert tries == (1 if kind == "slow" else 2)
    assert name in still.service.jobs


PERMANENT: dict[FaultKind, tuple[type[AzureError], str]] = {
    "throttle": (HttpResponseError, r"\(TooManyRequests\)"),
    "error": (HttpResponseError, r"\(InternalServerError\)"),
    "expired": (ClientAuthenticationError, r"\(ExpiredAuthenticationToken\)"),
    "denied": (
        HttpResponseError,
        (
            r"perform action 'Microsoft.MachineLearningServices/workspaces/jobs/write' over scope"
            r" '/subscriptions/.*/jobs/"
        ),
    ),
    "lost": (ServiceResponseError, "Connection"),
    "refused_lost": (ServiceResponseError, "Connection"),
}


@pytest.mark.parametrize("kind", PERMANENT)
def test_the_sdk_reports_permanent_faults(
    still: AzureCloud, ml: Any, tmp_path: Path, kind: FaultKind
) -> None:
    name = f"lasts-{kind}"
    error, words = PERMANENT[kind]
    still.endpoint.fault(kind, "arm", "PutJob", times=50)
    with pytest.raises(error, match=words):
        submit(ml, document(still, name, tmp_path, "talk"))
    assert (name in still.service.jobs) == (kind == "lost")


@pytest.mark.parametrize("kind", ["hang", "hang_before"])
def test_a_call_hangs_until_it_is_released(
    still: AzureCloud, ml: Any, tmp_path: Path, kind: FaultKind
) -> None:
    name = f"hangs-{kind}"
    job = document(still, name, tmp_path, "talk")
    still.endpoint.fault(kind, "arm", "PutJob")
    got: list[Any] = []
    waiting = threading.Thread(target=lambda: got.append(submit(ml, job)))
    waiting.start()
    still.endpoint.wait_until_hanging()
    assert (name in still.service.jobs) == (kind == "hang")
    still.endpoint.release()
    waiting.join(20)
    assert [entry.name for entry in got] == [name]
    assert still.endpoint.hanging == 0
    assert {TAG, "team"} <= still.service.jobs[name].tags.keys()
