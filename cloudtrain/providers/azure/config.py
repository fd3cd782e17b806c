"""The settings of an Azure ML job's workspace, fixed when it is planned."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from cloudtrain.providers.shared.config import CloudConfig

if TYPE_CHECKING:
    from cloudtrain.runs.folder import RunFolder


@dataclass(frozen=True, kw_only=True, slots=True)
class AzureConfig(CloudConfig):
    """Workspace, compute and storage of an Azure ML job. Less is known of runs that another machine
    started.
    """

    subscription: str
    """Its id."""
    resource_group: str
    workspace: str
    location: str | None = None
    """Where the workspace is, such as `eastus`: prices depend on it."""
    compute: str | None = None
    """A cluster of the workspace; None: serverless machines."""
    datastore: str = ""
    """Where checkpoints, model and output are kept."""
    repository: str | None = None
    """Where images that are built are pushed: `myregistry.azurecr.io/train`."""


def config_of(run: RunFolder) -> AzureConfig:
    """As it was when the run was planned."""
    from cloudtrain.runs.record import RunRecord  # a plan needs none of it

    return RunRecord(run).config(AzureConfig)


def request_of(run: RunFolder) -> dict[str, Any]:
    """The command-job document. StorageError where it lacks what later steps need."""
    from cloudtrain.runs.record import RunRecord  # a plan needs none of it

    return RunRecord(run).request({"name": str, "tags": dict, "outputs.output.path": str})
