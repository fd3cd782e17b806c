"""Read-only checks of a subscription for an Azure ML job: one module for each part."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cloudtrain.planning.target import Target
    from cloudtrain.providers.azure.arm import ResourceManager
    from cloudtrain.providers.azure.client import Workspace
    from cloudtrain.providers.azure.config import AzureConfig
    from cloudtrain.spec.model import JobSpec

ML_VERSION = "2024-10-01"
"""Version of the API of workspaces."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Account:
    """Workspace to check, and the job to check it for."""

    cloud: Workspace
    arm: ResourceManager
    config: AzureConfig
    target: Target
    spec: JobSpec
    user: str
    """Object id of the caller; empty if the token does not have it."""
    workspace: Mapping[str, Any]
    """Document of the workspace in ARM."""

    @property
    def scope(self) -> str:
        """Id of the workspace."""
        return workspace_id(self.config)

    @property
    def properties(self) -> Mapping[str, Any]:
        """Properties of the workspace: ids of storage account, key vault, registry and others."""
        properties: Mapping[str, Any] = self.workspace.get("properties") or {}
        return properties


def workspace_id(config: AzureConfig) -> str:
    """Return the id of the workspace in Azure Resource Manager."""
    group = f"/subscriptions/{config.subscription}/resourceGroups/{config.resource_group}"
    return f"{group}/providers/Microsoft.MachineLearningServices/workspaces/{config.workspace}"
