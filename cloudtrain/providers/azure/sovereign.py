"""Azure's clouds beside the public one: their locations and endpoints."""

from __future__ import annotations

import os
from typing import NamedTuple

CLOUD_VARIABLE = "AZUREML_CURRENT_CLOUD"
"""Variable with the cloud that Azure's SDK for machine learning uses."""

METADATA_VARIABLE = "ARM_CLOUD_METADATA_URL"
"""Variable with an address that describes a cloud; the SDK prefers it to its own list."""


class SovereignCloud(NamedTuple):
    """A cloud with its own logins and endpoints."""

    name: str
    """Name in the SDK and in `az cloud set`."""
    locations: tuple[str, ...]
    """Beginnings of its locations' names."""
    login: str
    vaults: str
    """Domain of its Key Vaults."""
    registries: str
    """Domain of its registries."""
    management: str
    """Resource whose tokens open its registries."""


CLOUDS = (
    SovereignCloud(
        name="AzureUSGovernment",
        locations=("usgov", "usdod"),
        login="login.microsoftonline.us",
        vaults="vault.usgovcloudapi.net",
        registries="azurecr.us",
        management="https://management.usgovcloudapi.net",
    ),
    SovereignCloud(
        name="AzureChinaCloud",
        locations=("china",),
        login="login.chinacloudapi.cn",
        vaults="vault.azure.cn",
        registries="azurecr.cn",
        management="https://management.chinacloudapi.cn",
    ),
)


def cloud_of(location: str) -> SovereignCloud | None:
    """Return the sovereign cloud of a location; None for the public one."""
    return next((cloud for cloud in CLOUDS if location.startswith(cloud.locations)), None)


def cloud_of_registry(host: str) -> SovereignCloud | None:
    """Return the sovereign cloud of a registry; None for the public one."""
    return next((cloud for cloud in CLOUDS if host.endswith(f".{cloud.registries}")), None)


def missing_variables(cloud: SovereignCloud) -> dict[str, str]:
    """Return the variables that lead the SDK and its logins to a cloud, if it is not led there."""
    if os.environ.get(METADATA_VARIABLE) or os.environ.get(CLOUD_VARIABLE) == cloud.name:
        return {}

    return {CLOUD_VARIABLE: cloud.name, "AZURE_AUTHORITY_HOST": cloud.login}
