"""Which cloud this is, whose the credentials are, and which identity a job's machines have."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from cloudtrain.checkup import Check, Question
from cloudtrain.providers.azure.account_checks import ML_VERSION, Account

if TYPE_CHECKING:
    from cloudtrain.providers.azure.arm import ResourceManager
    from cloudtrain.providers.azure.config import AzureConfig

PUBLIC = "AzureCloud"
CHINA = "AzureChinaCloud"
GOVERNMENT = "AzureUSGovernment"
_CLOUDS = {r"china\w*": CHINA, r"us(gov|dod)\w*": GOVERNMENT}
_REGISTRIES = {".azurecr.cn": CHINA, ".azurecr.us": GOVERNMENT}
_AUTHORITIES = {CHINA: "login.chinacloudapi.cn", GOVERNMENT: "login.microsoftonline.us"}


def cloud_check(arm: ResourceManager, config: AzureConfig) -> Check:
    """Check that it is the cloud of the location and of the registry: each sovereign cloud has
    accounts of its own.
    """
    asked = Question(
        "cloud", "is it the one that the job's addresses are in", ("azure", "location")
    )

    def ask() -> Check:
        wanted = _wanted(config)
        if wanted not in ("", arm.cloud):
            authority = _AUTHORITIES.get(wanted, "login.microsoftonline.com")
            fix = (
                f"az cloud set --name {wanted}, then az login; export"
                f" AZUREML_CURRENT_CLOUD={wanted} AZURE_AUTHORITY_HOST={authority}"
            )
            return asked.wrong(f"it is {arm.cloud}, and the settings are of {wanted}", fix)
        return asked.ok(f"it is {arm.cloud}, at {arm.address}")

    return asked.answered_by(ask)


def _wanted(config: AzureConfig) -> str:
    """The cloud that location and registry are of; empty where they do not tell."""
    for pattern, cloud in _CLOUDS.items():
        if re.fullmatch(pattern, config.location or ""):
            return cloud
    host = (config.repository or "").partition("/")[0]
    return next((cloud for end, cloud in _REGISTRIES.items() if host.endswith(end)), "")


def credentials_check(arm: ResourceManager, claims: dict[str, Any]) -> Check:
    """Whose the credentials are. `claims`: takes what the token says."""
    asked = Question("credentials", "whose are they")

    def ask() -> Check:
        claims.update(arm.claims())
        name = next(
            (
                claims[key]
                for key in ("upn", "unique_name", "preferred_username")
                if claims.get(key)
            ),
            "",
        )
        who = name or (
            f"the application {claims['appid']}"
            if claims.get("appid")
            else "a token that says no name"
        )
        return asked.ok(str(who))

    return asked.answered_by(ask)


def machine_identity(account: Account) -> tuple[str, str]:
    """Whose rights pull the image on the job's machines: in words, and its object id, empty where
    there is none.

    That of the cluster where it has one, else the workspace's own ("Set up authentication between
    Azure Machine Learning and other services").
    """
    if account.config.compute:
        path = f"{account.scope}/computes/{account.config.compute}"
        found = account.arm.find(path, ML_VERSION)
        principal = _principal(found.document if found else {})
        if principal:
            return f"the cluster {account.config.compute}", principal
    return f"the workspace {account.config.workspace}", _principal(account.workspace)


def job_identity(account: Account, kind: str | None) -> tuple[str, str]:
    """Whose rights a job has that reads data or secrets. `kind`: `azure.identity`, or None."""
    if kind == "user" or (kind is None and not account.config.compute):
        return (
            "you",
            account.user,
        )  # a serverless job acts as who submits it, unless it says something else
    return machine_identity(account)


def _principal(resource: Mapping[str, Any]) -> str:
    """The object id of a resource's identity; the first one's where it has several of its own
    choice.
    """
    identity = resource.get("identity") or {}
    assigned = [
        str(each.get("principalId") or "")
        for each in (identity.get("userAssignedIdentities") or {}).values()
    ]
    return next((each for each in [*assigned, str(identity.get("principalId") or "")] if each), "")
