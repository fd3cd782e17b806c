"""`cloudtrain infra settings --provider azure` against an imitated Resource Manager.

Reading the real template is tested in test_permissions.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fakes.azure.cloud import AzureCloud
from tests.support.in_process import call


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
    assert Path("cloudtrain.toml").read_text() == '[azure]\nworkspace = "lab"\n'


def test_missing_deployment_says_how_to_create_one(cloud: AzureCloud) -> None:
    result = call("infra", "settings", "--provider", "azure", "--yes")
    assert result.code == 4
    group = cloud.account.resource_group
    assert f"the deployment cloudtrain in the resource group {group} does not exist" in result.err
    assert "az deployment group create" in result.err


@pytest.mark.parametrize("state", ["Running", "Failed"])
def test_deployment_that_has_not_succeeded_is_refused(cloud: AzureCloud, state: str) -> None:
    cloud.account.rights.deployments["cloudtrain"] = {"provisioningState": state}
    result = call("infra", "settings", "--provider", "azure", "--yes")
    assert result.code == 4
    assert f"is not ready ({state})" in result.err
    assert "az deployment operation group list" in result.err
