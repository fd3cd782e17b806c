"""`cloudtrain doctor azure` reports each fault of a workspace; outputs of a deployment."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cloudtrain.api import doctor
from cloudtrain.planning.reference import RegistryImage
from cloudtrain.providers.azure import checkup as azure_checkup
from tests.fakes.azure.account import CLUSTER_IDENTITY, REGISTRY, VAULT, WORKSPACE_IDENTITY
from tests.fakes.azure.cloud import AzureCloud, client
from tests.fakes.azure.rights import BLOBS, PULL, READER, SCIENTIST, SECRETS, Assignment
from tests.fakes.azure.tokens import CLIENT, OBJECT_ID
from tests.providers.azure.operations import MODEL, forget
from tests.providers.faults import checks_for
from tests.support.in_process import call
from tests.support.samples import assert_only_wrong, names_of_wrong

# `cloudtrain doctor azure` reports nothing about a good workspace, and the one fault of every
# other.

pytestmark = pytest.mark.once

READS = {
    ("arm", "GetWorkspace"),
    ("arm", "GetDatastore"),
    ("arm", "GetCompute"),
    ("arm", "GetData"),
    ("arm", "ListData"),
    ("arm", "GetModel"),
    ("arm", "ListModels"),
    ("arm", "GetEnvironment"),
    ("arm", "ListEnvironments"),
    ("arm", "ListVmSizes"),
    ("arm", "ListUsages"),
    ("rights", "ListPermissions"),
    ("rights", "ListRoleAssignments"),
    ("rights", "GetRoleDefinition"),
    ("rights", "ListResources"),
    ("rights", "GetVault"),
    ("arm", "ListSecrets"),
    ("blob", "ListBlobs"),
}
"""All that doctor may ask of Azure. Each but ListSecrets is a GET, and none changes anything."""

IMAGE = f"{REGISTRY}.azurecr.io/train:1"
STORAGE = "storageAccount"
VAULTS = "keyVault"
REGISTRIES = "containerRegistry"


def has(cloud: AzureCloud, part: str, principal: str, role: str) -> Assignment:
    """A role on a part of the workspace, or on the workspace itself."""
    scope = cloud.account.part(part) if part else cloud.account.scope
    return Assignment(principal=principal, role=role, scope=scope)


@pytest.fixture
def healthy(cloud: AzureCloud, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Any]]:
    """Return a job on a cluster, with an image, a secret and a datastore that is opened by roles,
    in a complete account. Tests change either.
    """
    forget()
    cloud.put("train/a.txt", b"data")
    monkeypatch.setattr(
        doctor, "inspect_image", lambda _: RegistryImage("sha256:0", frozenset({"amd64"}))
    )
    cloud.account.datastore_credentials = "None"
    cloud.account.access.assignments = [
        has(cloud, "", OBJECT_ID, SCIENTIST),
        has(cloud, STORAGE, OBJECT_ID, BLOBS),
        has(cloud, STORAGE, CLUSTER_IDENTITY, BLOBS),
        has(cloud, REGISTRIES, CLUSTER_IDENTITY, PULL),
        has(cloud, VAULTS, CLUSTER_IDENTITY, SECRETS),
    ]
    yield {
        "name": "digits",
        "image": IMAGE,
        "resources": {"nodes": 2, "gpus": 1},
        "limits": {"max_runtime": "1 h"},
        "secrets": {"TOKEN": {"azure": f"keyvault:{VAULT}/token"}},
        "azure": {"compute": "gpu-cluster"},
        "inputs": {"train": {"azure": "azureml://datastores/workspaceblobstore/paths/train/"}},
    }
    assert {tuple(call) for call in cloud.endpoint.calls} <= READS


checks_of = partial(checks_for, "azure")


def test_a_list_of_machines_needs_only_one_that_the_cluster_has(healthy: dict[str, Any]) -> None:
    machines = [*OTHER_MACHINES, "Standard_NC24ads_A100_v4"]
    healthy["resources"]["instance"] = {"azure": machines}
    assert names_of_wrong(checks_of(healthy)) == []


def test_nothing_is_wrong_with_a_healthy_workspace(healthy: dict[str, Any]) -> None:
    checks = checks_of(healthy)
    assert names_of_wrong(checks) == []
    assert {check.verdict for check in checks} == {"found"}
    assert [check.name for check in checks] == [
        *("credentials", "clock", "workspace", "submitting", "datastore", "storage"),
        *("registry", "key vault", "input", "compute", "image"),
    ]
    assert checks[0].answer == CLIENT


@pytest.mark.parametrize("version", [":1", "@latest"])
def test_data_asset_of_a_job_is_found(
    healthy: dict[str, Any], cloud: AzureCloud, version: str
) -> None:
    from azure.ai.ml.entities import Data

    path = "azureml://datastores/workspaceblobstore/paths/train/"
    client(cloud).data.create_or_update(Data(name="words", version="1", path=path))
    cloud.endpoint.reset()
    healthy["inputs"] = {"train": {"azure": f"azureml:words{version}"}}
    (check,) = [check for check in checks_of(healthy) if check.name == "input"]
    assert (check.verdict, check.answer) == ("found", "there is")


@pytest.mark.parametrize("version", [":1", "@latest"])
def test_model_and_environment_of_a_job_are_found(
    healthy: dict[str, Any], cloud: AzureCloud, version: str
) -> None:
    cloud.service.assets.models["net", "1"] = MODEL
    cloud.service.assets.put_environment("mine", "1", {"properties": {"image": IMAGE}})
    model = {"azure": f"azureml:net{version}", "type": "mlflow_model"}
    job = {**healthy, "inputs": {"net": model}, "image": f"azureml:mine{version}"}
    verdicts = {check.name: check.verdict for check in checks_of(job)}
    assert (verdicts["input"], verdicts["environment"]) == ("found", "found")


def test_serverless_machines_need_quota_and_a_datastore_with_a_key_no_roles(
    healthy: dict[str, Any], cloud: AzureCloud
) -> None:
    cloud.account.datastore_credentials = "AccountKey"
    cloud.account.access.assignments = [has(cloud, "", OBJECT_ID, SCIENTIST)]
    verdicts = {
        check.name: check
        for check in checks_of({"name": "digits", "resources": {"gpus": 1, "gpu": "A100"}})
    }
    assert names_of_wrong([*verdicts.values()]) == []
    assert verdicts["storage"].verdict == "not checked"
    assert (verdicts["quota"].verdict, verdicts["quota"].answer) == (
        "found",
        (
            "Standard_NC24ads_A100_v4 may, by Total Cluster Dedicated Regional vCPUs, Standard NCADSA100v4 Family"
            " Cluster Dedicated vCPUs"
        ),
    )


Break = Callable[[AzureCloud, dict[str, Any], pytest.MonkeyPatch], None]


def without(part: str, principal: str) -> Break:
    """A role assignment less."""

    def break_(cloud: AzureCloud, spec: dict[str, Any], _: pytest.MonkeyPatch) -> None:
        assignments = cloud.account.access.assignments
        removed = (cloud.account.part(part), principal)
        remaining = [
            assignment
            for assignment in assignments
            if (assignment.scope, assignment.principal) != removed
        ]
        assert len(remaining) == len(assignments) - 1
        cloud.account.access.assignments = remaining

    return break_


def setting(**values: str) -> Break:
    return lambda _cloud, spec, _: spec["azure"].update(values)


def inputs(uri: str, **more: str) -> Break:
    return lambda _cloud, spec, _: spec.update(inputs={"train": {"azure": uri, **more}})


def account(**values: Any) -> Break:
    """Set facts of the account."""

    def break_(cloud: AzureCloud, spec: dict[str, Any], _: pytest.MonkeyPatch) -> None:
        for name, value in values.items():
            setattr(cloud.account, name, value)

    return break_


FAST = SimpleNamespace(time=lambda: time.time() + 600)


def only_reader(cloud: AzureCloud, spec: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    on_others = [
        assignment
        for assignment in cloud.account.access.assignments
        if assignment.role != SCIENTIST
    ]
    cloud.account.access.assignments = [has(cloud, "", OBJECT_ID, READER), *on_others]


def small_quota(cloud: AzureCloud, spec: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Let two serverless machines of 96 vCPUs have a quota of less."""
    del spec["azure"]["compute"], spec["secrets"]
    spec["azure"]["identity"] = "user"
    cloud.account.access.assignments.append(has(cloud, REGISTRIES, WORKSPACE_IDENTITY, PULL))
    spec["resources"] = {"nodes": 2, "instance": {"azure": "Standard_ND96amsr_A100_v4"}}
    cloud.account.quotas["standardNDAMSv4_A100Family"] = 96


OTHER_MACHINES = ["Standard_NC4as_T4_v3", "Standard_NV36ads_A10_v5"]

BROKEN: dict[str, tuple[str, str, Break]] = {
    "not logged in": ("credentials", "az login", lambda cloud, _spec, _: cloud.log_out()),
    "clock ten minutes fast": (
        "clock",
        " fast",
        lambda _cloud, _spec, patch: patch.setattr(azure_checkup, "time", FAST),
    ),
    "no such workspace": ("workspace", "azure.workspace", setting(workspace="gone")),
    "workspace elsewhere": ("workspace", "azure.location: eastus", setting(location="westeurope")),
    "workspace failed": ("workspace", "Failed", account(workspace_state="Failed")),
    "you may only read": ("submitting", "jobs/write", only_reader),
    "storage without keys": (
        *("storage", "takes no keys"),
        account(datastore_credentials="AccountKey", takes_keys=False),
    ),
    "no such datastore": ("datastore", "no such datastore", setting(datastore="gone")),
    "you may not write blobs": ("storage", "no role with", without(STORAGE, OBJECT_ID)),
    "the job may not write blobs": (
        "storage",
        "gpu-cluster has",
        without(STORAGE, CLUSTER_IDENTITY),
    ),
    "machines may not pull": ("registry", "AcrPull", without(REGISTRIES, CLUSTER_IDENTITY)),
    "the job may not read secrets": (
        "key vault",
        "Key Vault Secrets User",
        without(VAULTS, CLUSTER_IDENTITY),
    ),
    "no such vault": (
        *("key vault", "no key vault gone"),
        lambda _cloud, spec, _: spec.update(secrets={"TOKEN": {"azure": "keyvault:gone/token"}}),
    ),
    "no such input": (
        *("input", "there is nothing at azureml://datastores/workspaceblobstore/paths/gone/"),
        inputs("azureml://datastores/workspaceblobstore/paths/gone/"),
    ),
    "no such datastore of an input": (
        *("input", "there is no datastore gone"),
        inputs("azureml://datastores/gone/paths/train/"),
    ),
    "no such data asset": ("input", "no data asset azureml:gone:1", inputs("azureml:gone:1")),
    "no latest version": ("input", "az ml data list", inputs("azureml:gone@latest")),
    "no such model": ("input", "no model azureml:net:2", inputs("azureml:net:2", type="model")),
    "no such environment": (
        *("environment", "no environment azureml:mine:2"),
        lambda _cloud, spec, _: spec.update(image="azureml:mine:2"),
    ),
    "no environment at all": (
        *("environment", "az ml environment list"),
        lambda _cloud, spec, _: spec.update(image="azureml:gone@latest"),
    ),
    "no such cluster": ("compute", "no compute gone", setting(compute="gone")),
    "other machines in the cluster": (
        *("compute", f"the job was planned for {OTHER_MACHINES[0]} or {OTHER_MACHINES[1]}"),
        lambda _cloud, spec, _: spec["resources"].update(instance={"azure": OTHER_MACHINES}),
    ),
    "cluster failed": (
        *("compute", "Failed"),
        lambda cloud, _spec, _: setattr(cloud.account.computes["gpu-cluster"], "state", "Failed"),
    ),
    "quota too small": (
        "quota",
        "the quota 'Standard NDAMSv4_A100 Family Cluster Dedicated vCPUs' is 96",
        small_quota,
    ),
    "no such image": (
        *("image", "no such image"),
        lambda _cloud, _spec, patch: patch.setattr(doctor, "inspect_image", lambda _: None),
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_workspace_is_told_of_the_one_thing_that_is_wrong(
    name: str, healthy: dict[str, Any], cloud: AzureCloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    check, message, break_ = BROKEN[name]
    if name == "no such cluster":  # whose identity would have these roles
        assignments = cloud.account.access.assignments
        assignments += [
            replace(assignment, principal=WORKSPACE_IDENTITY) for assignment in assignments
        ]
    break_(cloud, healthy, monkeypatch)
    assert_only_wrong(checks_of(healthy), check, message)


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
