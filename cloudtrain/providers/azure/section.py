"""The section `azure` of job.yaml: settings of the workspace, and options of Azure ML."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from cloudtrain.spec.section import Members, Section, Strings


class AzureSection(Section):
    """Fields for Azure ML; the workspace and its parts may be in the settings instead."""

    subscription: str | None = Field(None, description="id of the subscription")
    resource_group: str | None = Field(None, description="the workspace's resource group")
    workspace: str | None = Field(None, description="the Azure ML workspace that the job runs in")
    location: str | None = Field(
        None,
        description="where the workspace is, such as eastus: prices depend on it",
    )
    compute: str | None = Field(
        None,
        description="a compute cluster of the workspace; default: serverless machines",
    )
    datastore: str | None = Field(None, description="where checkpoints, model and output are kept")
    repository: str | None = Field(
        None,
        description="where built images are pushed: myregistry.azurecr.io/train",
    )
    identity: Literal["managed", "user"] | None = Field(None, description="whom the job acts as")
    services: Strings = Field(
        (),
        description="ways into the running job: ssh, jupyter, vscode, tensorboard",
    )
    ssh_key: str | None = Field(None, description="your public key, for the service ssh")
    conda: str | None = Field(
        None,
        description="conda file that Azure ML installs in the image, with Python 3.10 or newer",
    )
    description: str | None = Field(None, description="text on the job's page in the studio")
    experiment: str | None = Field(None, description="experiment of the job; default: its name")
    display_name: str | None = Field(None, description="title of the job; default: its name")
    request: Members = Field(
        {},
        description="keys of the command job's YAML that no other field sets, merged into the"
        " request; null removes one",
    )
