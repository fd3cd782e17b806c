"""Settings of an Azure ML job's workspace, fixed in its plan, and its client."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from cloudtrain.extras import importing
from cloudtrain.planning.target import CloudConfig

if TYPE_CHECKING:
    from cloudtrain.planning.registry import RegistryLogin
    from cloudtrain.providers.azure.client import Workspace
    from cloudtrain.runs.folder import RunFolder


@dataclass(frozen=True, kw_only=True, slots=True)
class AzureConfig(CloudConfig):
    """Workspace, compute and storage of an Azure ML job; partly unknown for discovered runs."""

    subscription: str
    """Id of the subscription."""
    resource_group: str
    workspace: str
    location: str | None = None
    """Location of the workspace, such as `eastus`: prices depend on it."""
    compute: str | None = None
    """A cluster of the workspace; None: serverless machines."""
    datastore: str = ""
    """Datastore of checkpoints, model and output."""
    repository: str | None = None
    """Repository of built images: `myregistry.azurecr.io/train`."""

    @property
    def account(self) -> str:
        """Workspace with its group and subscription."""
        return f"{self.subscription}/{self.resource_group}/{self.workspace}"

    @property
    def storage(self) -> str:
        """URI of the datastore."""
        return f"azureml://datastores/{self.datastore}/paths"


def config_of(run: RunFolder) -> AzureConfig:
    """Return the settings from the run's plan."""
    from cloudtrain.runs.record import RunRecord  # a plan has no run

    return RunRecord(run).config(AzureConfig)


def request_of(run: RunFolder) -> dict[str, Any]:
    """Return the command-job document. StorageError if it lacks keys for later steps."""
    from cloudtrain.runs.record import RunRecord

    return RunRecord(run).request({"name": str, "tags": dict, "outputs.output.path": str})


def client_of_run(run: RunFolder) -> Workspace:
    """Return the client of a run's or a sweep's workspace. UsageError without azure-ai-ml."""
    config = config_of(run)
    return connect(config.subscription, config.resource_group, config.workspace)


def connect(subscription: str, resource_group: str, name: str) -> Workspace:
    """Return the client of a workspace. Raise UsageError without azure-ai-ml."""
    with importing("azure", "the azure provider needs azure-ai-ml"):
        from cloudtrain.providers.azure.client import workspace

    return workspace(subscription, resource_group, name)


def registry_login(host: str) -> RegistryLogin:
    """Return the login of an Azure registry. Raise UsageError without azure-ai-ml."""
    with importing("azure", "its registry needs azure-ai-ml"):
        from cloudtrain.providers.azure.sdk import registry_login as login

    return login(host)
