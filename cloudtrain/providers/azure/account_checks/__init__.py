"""What an Azure ML job needs of a subscription, asked by requests that only read: one module for
each part of it.
"""

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
"""Of the API of workspaces."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Account:
    """The workspace that is asked, and the job that it is asked for."""

    cloud: Workspace
    arm: ResourceManager
    config: AzureConfig
    target: Target
    spec: JobSpec
    user: str
    """Object id of whoever asks; empty where the token does not say."""
    workspace: Mapping[str, Any]
    """The workspace as ARM has it."""

    @property
    def scope(self) -> str:
        """The workspace's id."""
        return workspace_id(self.config)

    @property
    def properties(self) -> Mapping[str, Any]:
        """Of the workspace: the ids of its storage account, key vault and registry, among others."""
        found: Mapping[str, Any] = self.workspace.get("properties") or {}
        return found


def workspace_id(config: AzureConfig) -> str:
    """The id of the workspace in Azure Resource Manager."""
    group = f"/subscriptions/{config.subscription}/resourceGroups/{config.resource_group}"
    return f"{group}/providers/Microsoft.MachineLearningServices/workspaces/{config.workspace}"
