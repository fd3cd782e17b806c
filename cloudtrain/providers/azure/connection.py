"""Clients of a workspace. azure-ai-ml is imported with the first one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cloudtrain.errors import UsageError
from cloudtrain.providers.azure.config import config_of

if TYPE_CHECKING:
    from cloudtrain.providers.azure.client import Workspace
    from cloudtrain.runs.folder import RunFolder


def client_of_run(run: RunFolder) -> Workspace:
    """Return the client of a run's or a sweep's workspace. UsageError without azure-ai-ml."""
    config = config_of(run)
    return connect(config.subscription, config.resource_group, config.workspace)


def connect(subscription: str, resource_group: str, name: str) -> Workspace:
    """Return the client of a workspace. Raise UsageError without azure-ai-ml."""
    try:
        from cloudtrain.providers.azure.client import workspace
    except ImportError as error:
        from cloudtrain.providers.azure.validate import INSTALL

        message = f"the azure provider needs azure-ai-ml, which is not installed: {error}"
        raise UsageError(message, hint=INSTALL) from None
    return workspace(subscription, resource_group, name)
