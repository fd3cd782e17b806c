"""`cloudtrain doctor azure` names each thing that a workspace lacks; outputs of a deployment."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from cloudtrain.api import doctor
from cloudtrain.checkup import Check
from cloudtrain.planning.registry import RegistryImage
from cloudtrain.providers.azure import checkup as azure_checkup
from cloudtrain.providers.azure import lookups
from tests.fakes.azure.account import CLUSTER_IDENTITY, REGISTRY, VAULT
from tests.fakes.azure.account import WORKSPACES as PREFIX
from tests.fakes.azure.cloud import AzureCloud, client, document, submit
from tests.fakes.azure.rights import (
    BLOBS,
    BUILT_IN,
    OWNER,
    PULL,
    SCIENTIST,
    SECRETS,
    Assignment,
)
from tests.fakes.azure.tokens import CLIENT, OBJECT_ID
from tests.providers.azure.operations import MODEL, UNCHECKED, forget
from tests.providers.faults import checks_for
from tests.support.in_process import call
from tests.support.samples import assert_only_wrong, names_of_wrong

# `cloudtrain doctor azure` finds all of a good workspace, and what every other one lacks.

pytestmark = pytest.mark.once

WRITING = ("Put", "Cancel", "Set", "Start", "Log")
"""Beginnings of calls that change something. Doctor makes none."""

WORKSPACES = yaml.safe_load(
    (Path(__file__).parents[2] / "data" / "azure_workspaces.yaml").read_text()
)
IMAGE = f"{REGISTRY}.azurecr.io/train:1"
STORE = "azureml://datastores/workspaceblobstore/paths"
WHO = {"caller": OBJECT_ID, "cluster": CLUSTER_IDENTITY}
SCIENTISTS = "AzureML Data Scientist"
GRANTED = (
    ("storageAccount", "caller", BLOBS),
    ("storageAccount", "cluster", BLOBS),
    ("containerRegistry", "cluster", PULL),
    ("keyVault", "cluster", SECRETS),
)
"""Parts of a workspace, and who has which role there."""


@pytest.fixture
def healthy(cloud: AzureCloud, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Any]]:
    """Return a job on a cluster, with an image, a secret and a datastore that is opened by roles,
    in a complete account. Tests change either.
    """
    forget()
    cloud.put("train/a.txt", b"data")
    there = RegistryImage("sha256:0", frozenset({"amd64"}))
    monkeypatch.setattr(doctor, "inspect_image", lambda _: there)
    account = cloud.account
    account.datastore_credentials = "None"
    assign(cloud, SCIENTIST, *GRANTED)
    yield {
        "name": "digits",
        "image": IMAGE,
        "resources": {"nodes": 2, "gpus": 1},
        "limits": {"max_runtime": "1 h"},
        "secrets": {"TOKEN": {"azure": f"keyvault:{VAULT}/token"}},
        "azure": {"compute": "gpu-cluster"},
        "inputs": {"train": {"azure": f"{STORE}/train/"}},
    }
    assert not [call for call in cloud.endpoint.calls if call.operation.startswith(WRITING)]


def assign(cloud: AzureCloud, role: str, *granted: tuple[str, str, str]) -> None:
    """Give the caller a role on the workspace, and roles on its parts, and no others."""
    account = cloud.account
    account.access.assignments = [Assignment(principal=OBJECT_ID, role=role, scope=account.scope)]
    for part, who, part_role in granted:
        assignment = Assignment(principal=WHO[who], role=part_role, scope=account.part(part))
        account.access.assignments.append(assignment)


def break_(cloud: AzureCloud, job: dict[str, Any], change: Mapping[str, Any]) -> None:
    """Take from a healthy workspace and its job what a row of the table says."""
    account = cloud.account
    revoked = tuple(change.get("revoke", ()))
    granted = [grant for grant in GRANTED if grant[:2] != revoked]
    if "owner" in change:
        granted.append((change["owner"], "caller", OWNER))
    role = next(role for role in BUILT_IN.values() if role.name == change.get("role", SCIENTISTS))
    without = tuple(f"{PREFIX}/{action}" for action in [change.get("without")] if action)
    account.access.roles["changed"] = replace(role, not_actions=role.not_actions + without)
    account.access.is_enforced = "role" in change
    assign(cloud, "changed", *granted)
    for assignment in account.access.assignments:
        if assignment.role == BLOBS:
            object.__setattr__(assignment, "condition", change.get("condition", ""))
    for name, path in change.get("assets", {}).items():
        put_asset(cloud, name, path)
    if "model" in change:
        cloud.put(change["model"], b"weights")
        cloud.service.assets.models["net", "1"] = MODEL
    for name, value in change.get("account", {}).items():
        setattr(account, name, value)
    for name, value in change.get("cluster", {}).items():
        setattr(account.computes["gpu-cluster"], name, value)

    account.rights.gone = {change.get("gone", "")}
    account.rights.properties = change.get("properties", {})
    merge(job, change.get("job", {}))


def merge(values: dict[str, Any], changes: Mapping[str, Any]) -> None:
    """Merge a mapping into another one; null removes a key."""
    for name, value in changes.items():
        if value is None:
            values.pop(name, None)
        elif isinstance(value, Mapping) and name not in ("inputs", "secrets"):
            merge(values.setdefault(name, {}), value)
        else:
            values[name] = value


def put_asset(cloud: AzureCloud, name: str, path: str) -> None:
    """Register an environment without a path, or else a data asset."""
    if not path:
        cloud.service.assets.put_environment(name, "1", {"properties": {"image": IMAGE}})
        return

    kind = "uri_folder" if path.endswith("/") else "uri_file"
    data = {"dataType": kind, "dataUri": f"{STORE}/{path}"}
    cloud.service.assets.put_data(name, "1", {"properties": data})


checks_of = partial(checks_for, "azure")


def unchecked(checks: list[Check]) -> dict[str, str]:
    """Return the checks that were not made, with their reasons, but for those of every job."""
    return {
        check.name: check.answer
        for check in checks
        if check.verdict == "not checked" and check.name not in UNCHECKED
    }


def test_each_thing_of_a_healthy_workspace_is_found(healthy: dict[str, Any]) -> None:
    checks = checks_of(healthy)
    assert names_of_wrong(checks) == []
    assert unchecked(checks) == {}
    assert [check.name for check in checks] == [
        *("credentials", "workspace", "clock", "compute", "identity", "environment", "input"),
        *("datastore", "secret", "your rights", *UNCHECKED, "image"),
    ]
    assert checks[0].answer == CLIENT


@pytest.mark.parametrize("name", WORKSPACES)
def test_a_workspace_is_told_of_the_thing_that_it_lacks(
    name: str, healthy: dict[str, Any], cloud: AzureCloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = WORKSPACES[name]
    break_(cloud, healthy, row)
    answer = nullcontext(SimpleNamespace(status=row.get("status")))
    if "status" in row:
        monkeypatch.setattr(lookups, "urlopen", lambda *_, **__: answer)
    checks = checks_of(healthy)
    if "wrong" in row:
        assert_only_wrong(checks, row["wrong"], row["says"])
        return
    assert names_of_wrong(checks) == []
    if "unchecked" in row:
        assert row["says"] in unchecked(checks)[row["unchecked"]]
    else:
        answers = [check.answer for check in checks if check.name == row["found"]]
        assert (unchecked(checks), answers) == ({}, row["says"])


def test_what_the_machine_tells_is_told_alike(
    healthy: dict[str, Any], cloud: AzureCloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    fast = SimpleNamespace(time=lambda: time.time() + 600)
    with monkeypatch.context() as patch:
        patch.setattr(azure_checkup, "time", fast)
        assert_only_wrong(checks_of(healthy), "clock", " fast")

    with monkeypatch.context() as patch:
        patch.setattr(doctor, "inspect_image", lambda _: None)
        assert_only_wrong(checks_of(healthy), "image", "no such image")

    forget()
    cloud.log_out()
    assert_only_wrong(checks_of(healthy), "credentials", "az login")


def test_a_serverless_job_acts_as_who_submits_it_and_needs_quota(
    healthy: dict[str, Any], cloud: AzureCloud
) -> None:
    cloud.account.datastore_credentials = "AccountKey"
    assign(cloud, SCIENTIST)
    checks = checks_of({"name": "digits", "resources": {"gpus": 1, "gpu": "A100"}})
    answers = {check.name: check.answer for check in checks}
    assert (names_of_wrong(checks), unchecked(checks)) == ([], {})
    assert (answers["identity"], answers["datastore"]) == ("you", "the workspace has its key")
    assert answers["quota"] == (
        "Standard_NC24ads_A100_v4 may, by Total Cluster Dedicated Regional vCPUs, Standard NCADSA100v4 Family"
        " Cluster Dedicated vCPUs"
    )


def test_an_output_of_a_job_is_not_looked_at(
    healthy: dict[str, Any], cloud: AzureCloud, folder: Path
) -> None:
    submit(client(cloud), document(cloud, "earlier", folder))
    cloud.endpoint.reset()
    healthy["inputs"] = {"train": {"azure": "azureml://jobs/earlier/outputs/out"}}
    assert "what it left is not looked at" in unchecked(checks_of(healthy))["input"]


# `cloudtrain infra settings --provider azure` against an imitated Resource Manager.
# Reading the real template is tested in test_permissions.py.


@pytest.fixture(autouse=True)
def no_deployment_is_left(cloud: AzureCloud) -> Iterator[None]:
    yield
    cloud.account.rights.deployments.clear()


def test_outputs_that_are_settings_are_written(cloud: AzureCloud) -> None:
    outputs = {"workspace": "lab", "compute": "", "vault": "lab-vault"}
    cloud.account.rights.deployments["lab"] = {
        "provisioningState": "Succeeded",
        "outputs": {name: {"type": "String", "value": value} for name, value in outputs.items()},
    }
    result = call("infra", "settings", "--provider", "azure", "--name", "lab", "--yes")
    assert result.code == 0, result.err
    assert result.out == "key vault for secrets of jobs: lab-vault\n"
    assert '+ workspace = "lab"' in result.err
    assert "next: cloudtrain doctor azure" in result.err
    assert Path("cloudtrain.toml").read_text() == '[azure]\nworkspace = "lab"\n'


@pytest.mark.parametrize("state", ["missing", "Running", "Failed"])
def test_a_deployment_without_outputs_is_reported(cloud: AzureCloud, state: str) -> None:
    if state != "missing":
        cloud.account.rights.deployments["cloudtrain"] = {"provisioningState": state}
    result = call("infra", "settings", "--provider", "azure", "--yes")
    assert result.code == 4
    if state == "missing":
        place = f"cloudtrain in the resource group {cloud.account.resource_group}"
        assert f"the deployment {place} does not exist" in result.err
        assert "az deployment group create" in result.err
    else:
        assert f"is not ready ({state})" in result.err
        assert "az deployment operation group list" in result.err
