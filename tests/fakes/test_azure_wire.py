"""The imitation of Azure ML on the wire, and its RBAC."""

from __future__ import annotations

import copy
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from tests.fakes.azure import wire
from tests.fakes.azure.account import Account
from tests.fakes.azure.cloud import AzureCloud, call, client, document, submit, words
from tests.fakes.azure.permissions import attempts
from tests.fakes.azure.rights import (
    AUTHORIZATION,
    BLOBS,
    BUILT_IN,
    OWNER,
    READER,
    SCIENTIST,
    Access,
    Assignment,
    Attempt,
    Role,
)
from tests.fakes.azure.storage import Container, Storage
from tests.fakes.azure.tokens import Tokens
from tests.fakes.azure.wire import Place, json_response
from tests.fakes.messages import Call

# The imitation of Azure ML on the wire: it takes what Microsoft's schema allows, and refuses what
# Azure ML would not run.

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
REFUSALS: dict[str, tuple[str, object, str]] = {
    "no command": ("command", GONE, "command is missing"),
    "unknown key": ("zzz", 1, "Could not find member 'zzz'"),
    "code": ("codeId", f"{ELSEWHERE}/codes/c/versions/1", "Code /subscriptions"),
    "environment": ("environmentId", "azureml:AzureML-x:1", "Environment azureml"),
    "compute": ("computeId", f"{ELSEWHERE}/computes/gpu-cluster", "Unknown compute target"),
    "placeholder": ("command", "x ${{inputs.nothing}}", "neither an input nor an output"),
    "queue and cluster": ("queueSettings", {"jobTier": "Spot"}, "serverless jobs only"),
    "no machine": ("computeId", GONE, "needs resources.instanceType"),
}
"""A member of a request, its new content, and words of the refusal."""


@pytest.mark.parametrize("case", REFUSALS)
def test_azure_ml_refuses_what_it_would_not_run(still: AzureCloud, body: Body, case: str) -> None:
    member, content, words = REFUSALS[case]
    body["properties"] |= {member: content}
    if content is GONE:
        del body["properties"][member]
    status, code, message = put(still, "refused", body)
    assert status in (400, 404)
    assert code == "UserError"
    assert words in message
    assert "refused" not in still.service.jobs


COMMAND = {"jobType": "Command", "command": "true", "environmentId": "one"}


@pytest.mark.parametrize(
    ("properties", "problem"),
    [
        ({"jobType": "Chore"}, "'Chore' is not in"),
        ({"jobType": "Command", "command": "true"}, "environmentId is missing"),
        ({**COMMAND, "status": "Fine"}, "'Fine' is not a JobStatus"),
        ({**COMMAND, "isArchived": "no"}, "'no' is not of type <class 'bool'>"),
    ],
)
def test_answer_that_contradicts_microsofts_model_is_a_mistake(
    still: AzureCloud, monkeypatch: pytest.MonkeyPatch, properties: Body, problem: str
) -> None:
    answer = json_response(200, {"properties": properties})
    monkeypatch.setitem(still.service.operations, "GetJob", lambda _: answer)
    with pytest.raises(OSError, match="closed connection"):
        call(still, "GET", f"{still.account.scope}/jobs/any?{VERSION}")
    assert problem in still.account.unexpected_errors.pop()


@pytest.mark.parametrize("name", ["-x", "a.b", "x" * 256])
def test_job_names_are_validated(still: AzureCloud, body: Body, name: str) -> None:
    status, code, message = put(still, quote(name), body)
    assert (status, code) == (400, "UserError")
    assert "alphanumeric" in message


def test_a_request_without_a_valid_token_or_version_is_rejected(still: AzureCloud) -> None:
    path = f"{still.account.scope}/jobs/model?{VERSION}"
    expired = still.account.tokens.bearer(still.endpoint.url, -1)
    foreign = still.account.tokens.bearer("https://x.net")
    for token in ("", "x", expired, foreign):
        assert call(still, "GET", path, token=token)[0] == 401
    for wrong in (path.partition("?")[0], path.replace("2025-01-01", "2025-01-02")):
        assert call(still, "GET", wrong)[0] == 400
    assert call(still, "GET", f"{still.account.scope}/models?{VERSION}")[0] == 404


BARRIERS: dict[str, tuple[str, Any, int, str]] = {
    "another tenant": ("home_tenant", "t", 401, "InvalidAuthenticationTokenTenant"),
    "a private workspace": ("is_private", True, 403, "UserError"),
    "a policy": ("policy", "require cost tag", 403, "RequestDisallowedByPolicy"),
    "throttling": ("throttled", {"PutJob": 1}, 429, "TooManyRequests"),
}
"""Barriers before a job: the field of the account, its value, status and code of the answer."""


@pytest.mark.parametrize("case", BARRIERS)
def test_what_stands_before_a_job_refuses_it(still: AzureCloud, body: Body, case: str) -> None:
    field, value, status, code = BARRIERS[case]
    setattr(still.account, field, value)
    name = f"before-{case.replace(' ', '-')}"
    assert put(still, name, body)[:2] == (status, code)
    assert name not in still.service.jobs


def test_a_firewall_of_the_storage_leaves_the_workspace_open(still: AzureCloud) -> None:
    account = still.account
    account.storage_is_private = True
    request = urllib.request.Request(account.sas_url("azureml", permissions="l") + "&comp=list")
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(request)
    with refused.value as answer:
        assert (answer.code, answer.headers["x-ms-error-code"]) == (403, "AuthorizationFailure")
    assert call(still, "GET", f"{account.scope}?{VERSION}")[0] == 200


def test_a_range_of_a_large_blob_does_not_read_the_rest(
    still: AzureCloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    container = still.account.storage.create("azureml")
    container.write("large", b"")
    with (container.folder / "large").open("wb") as file:
        file.seek(1 << 33)
        file.write(b"end")

    monkeypatch.setattr(Container, "read", lambda *_: pytest.fail("the whole blob was read"))
    url = still.account.sas_url("azureml", "large")
    with urllib.request.urlopen(urllib.request.Request(url, method="HEAD")) as answer:
        assert int(answer.headers["Content-Length"]) == (1 << 33) + 3
    part = urllib.request.Request(url, headers={"x-ms-range": f"bytes={1 << 33}-"})
    with urllib.request.urlopen(part) as answer:
        assert answer.read() == b"end"


# The imitated Azure RBAC: scopes inherit, an asterisk spans slashes, what is excluded is not
# granted.

GROUP = "/subscriptions/s/resourceGroups/lab"
STORAGE = f"{GROUP}/providers/Microsoft.Storage/storageAccounts/one"
BLOB = "Microsoft.Storage/storageAccounts/blobServices/containers/blobs/read"


STORAGE_READ = "Microsoft.Storage/storageAccounts/read"
COMPUTE = "microsoft.machinelearningservices/workspaces/computes/x/WRITE"


@pytest.mark.parametrize(
    ("role", "at", "action", "scope", "allowed"),
    [
        *((READER, at, STORAGE_READ, STORAGE, True) for at in ("/", GROUP.lower(), STORAGE)),
        *((READER, at, STORAGE_READ, STORAGE, False) for at in (f"{GROUP}2", f"{STORAGE}two")),
        (READER, f"{STORAGE}/blobServices/default", STORAGE_READ, STORAGE, False),
        (OWNER, "/", BLOB, f"{STORAGE}/blobServices/default/containers/one", False),
        (BLOBS, STORAGE, BLOB, f"{STORAGE}/blobServices/default/containers/one", True),
        (OWNER, GROUP, COMPUTE, GROUP, True),
        (SCIENTIST, GROUP, COMPUTE, GROUP, False),
    ],
)
def test_a_role_holds_at_its_scope_and_below_without_what_it_excludes(
    role: str, at: str, action: str, scope: str, allowed: bool
) -> None:
    assigned = Assignment(principal="me", role=role, scope=at)
    access = Access(roles=dict(BUILT_IN), assignments=[assigned], is_enforced=True)
    attempt = Attempt(action=action, scope=scope, on_data=action == BLOB)
    assert access.allows("me", attempt) is allowed
    assert not access.allows("you", attempt)


def test_an_asterisk_spans_slashes_and_stands_for_no_missing_part() -> None:
    role = Role(name="", actions=("Microsoft.A/b/*/read",))
    assert role.grants("Microsoft.A/b/c/d/read", on_data=False)
    assert not role.grants("Microsoft.A/b/read", on_data=False), "Azure documents nothing"


FREE = {
    "GetDiscovery",
    "GetToken",
    "GetResult",
    "ListResources",
    "GetRunToken",
    "LogMetric",
    "LogParameter",
    "GetRegistry",
    "GetRegistryEnvironment",
    "ListRegistryEnvironments",
}
"""Calls that need no role: addresses of services, Microsoft's own registry, a token, a result whose
address the requester got, and lists that the service filters by itself. With the token of a run:
its next token, metrics and parameters.
"""


def test_every_call_but_a_few_needs_an_action(tmp_path: Path) -> None:
    account = Account(folder=tmp_path, storage=Storage(tmp_path), tokens=Tokens())
    id_ = f"{account.scope}{AUTHORIZATION}/roleAssignments"
    place = Place(id_, {}, {"container": "one"})
    calls = [Call(route.service, route.operation) for route in wire.ROUTES]
    calls += [Call("blob", operation) for operation in wire.BLOB_CALLS.values()]
    assert len(calls) > 30
    free = {call.operation for call in calls if not list(attempts(call, place, account))}
    assert free <= FREE


def test_a_job_acts_as_its_cluster_or_as_who_submits_or_as_it_says(tmp_path: Path) -> None:
    account = Account(folder=tmp_path, storage=Storage(tmp_path), tokens=Tokens(), submitter="me")
    account.computes["gpu-cluster"].identity = "cluster"
    account.parts = {"identity": "workspace"}
    on_cluster = {"computeId": f"{account.scope}/computes/gpu-cluster"}
    assert account.identities_of(on_cluster) == ("cluster", "cluster")
    assert account.identities_of({**on_cluster, "identity": {"identityType": "UserIdentity"}}) == (
        "cluster",
        "me",
    )
    assert account.identities_of({}) == ("workspace", "me")
    assert account.identities_of({"identity": {"identityType": "Managed"}}) == (
        "workspace",
        "workspace",
    )
