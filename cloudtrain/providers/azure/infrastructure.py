"""The Azure deployment of an account: its template, and its outputs as settings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cloudtrain.bundle import bundled
from cloudtrain.errors import CloudError, UsageError
from cloudtrain.extras import importing
from cloudtrain.providers.azure.declaration import DECLARATION
from cloudtrain.providers.infrastructure import Deployment, Infrastructure, SettingValue
from cloudtrain.settings import Settings

_VERSION = "2021-04-01"
"""Version of the API of Microsoft.Resources/deployments."""

_MEANINGS = {"vault": "key vault for secrets of jobs", "github_client_id": "client id for GitHub"}
"""Output that is not a setting -> its meaning."""


class AzureInfrastructure(Infrastructure):
    """The deployment of one name in the resource group of the settings, or of the same name."""

    formats = ("arm",)

    def __init__(self, settings: Settings, name: str) -> None:
        self._settings = settings
        self._name = name

    def template(self, format_: str) -> str:  # noqa: ARG002  (only one exists)
        """Return the ARM template."""
        return (bundled("infra") / "azure" / "template.json").read_text(encoding="utf-8")

    def deployment(self) -> Deployment:
        """Read the outputs of the deployment."""
        outputs = self._outputs()
        settings: dict[str, SettingValue] = {}
        for key, value in outputs.items():
            if key in DECLARATION.settings and value:
                settings[f"azure.{key}"] = value

        other_outputs = {
            meaning: outputs[name] for name, meaning in _MEANINGS.items() if name in outputs
        }
        return Deployment(settings=settings, outputs=other_outputs)

    def _outputs(self) -> dict[str, str]:
        """Return the outputs of the deployment. Raise CloudError if it has not succeeded."""
        group = self._settings.get("azure.resource_group") or self._name
        path = (
            f"/subscriptions/{self._subscription()}/resourceGroups/{group}/providers"
            f"/Microsoft.Resources/deployments/{self._name}"
        )
        where = f"the deployment {self._name} in the resource group {group}"

        properties = _properties(path)
        if properties is None:
            hint = (
                "--name and azure.resource_group choose another one; cloudtrain infra template"
                " --provider azure prints a template for az deployment group create"
            )
            raise CloudError(f"{where} does not exist", code="NotFound", hint=hint)

        state = str(properties.get("provisioningState"))
        if state != "Succeeded":
            show = f"az deployment operation group list --resource-group {group}"
            raise CloudError(
                f"{where} is not ready ({state})", code=state, hint=f"{show} --name {self._name}"
            )

        outputs = properties.get("outputs") or {}
        return {name: str(output["value"]) for name, output in outputs.items()}

    def _subscription(self) -> str:
        from cloudtrain.providers.azure.account import cli_default_account

        default = cli_default_account().get("subscription")
        subscription = self._settings.get("azure.subscription")
        if default and not subscription:
            subscription = default[0]
        if not subscription:
            hint = "az login, or [azure] subscription in cloudtrain.toml"
            raise UsageError("azure.subscription is not set", hint=hint)

        return str(subscription)


def _properties(path: str) -> Mapping[str, Any] | None:
    """Return the properties of a deployment; None if there is no such deployment."""
    with importing("azure", "this needs azure-ai-ml"):
        from cloudtrain.providers.azure.sdk import ResourceManager

    resource = ResourceManager().find(path, _VERSION)
    if resource is None:
        return None

    properties: Mapping[str, Any] = resource.document["properties"]
    return properties
