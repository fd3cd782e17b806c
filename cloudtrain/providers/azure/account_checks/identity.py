"""Checks of cloud and credentials, and the identity of a job's machines."""

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
    """Check that the cloud matches location and registry: each sovereign cloud is separate."""
    question = Question("cloud", "does it match the job's addresses", ("azure", "location"))

    def ask() -> Check:
        expected = _expected_cloud(config)
        if expected not in ("", arm.cloud):
            authority = _AUTHORITIES.get(expected, "login.microsoftonline.com")
            fix = (
                f"az cloud set --name {expected}, then az login; export"
                f" AZUREML_CURRENT_CLOUD={expected} AZURE_AUTHORITY_HOST={authority}"
            )
            return question.wrong(f"it is {arm.cloud}, and the settings are of {expected}", fix)
        return question.ok(f"it is {arm.cloud}, at {arm.address}")

    return question.answered_by(ask)


def _expected_cloud(config: AzureConfig) -> str:
    """Return the cloud of location and registry; empty if unclear."""
    for pattern, cloud in _CLOUDS.items():
        if re.fullmatch(pattern, config.location or ""):
            return cloud
    host = (config.repository or "").partition("/")[0]
    return next((cloud for end, cloud in _REGISTRIES.items() if host.endswith(end)), "")


def credentials_check(arm: ResourceManager, claims: dict[str, Any]) -> Check:
    """Check whose the credentials are. `claims`: filled with the token's claims."""
    question = Question("credentials", "whose are they")

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
        application = f"the application {claims['appid']}" if claims.get("appid") else ""
        who = name or application or "a token that says no name"
        return question.ok(str(who))

    return question.answered_by(ask)


def machine_identity(account: Account) -> tuple[str, str]:
    """Return the identity that pulls images on the job's machines: a description, an object id.

    The id is empty without an identity. The cluster's identity comes first, then the workspace's
    ("Set up authentication between Azure Machine Learning and other services").
    """
    if account.config.compute:
        path = f"{account.scope}/computes/{account.config.compute}"
        resource = account.arm.find(path, ML_VERSION)
        principal = _principal(resource.document if resource else {})
        if principal:
            return f"the cluster {account.config.compute}", principal
    return f"the workspace {account.config.workspace}", _principal(account.workspace)


def job_identity(account: Account, kind: str | None) -> tuple[str, str]:
    """Return the identity of a job that reads data or secrets.

    `kind`: `azure.identity`, or None.
    """
    if kind == "user" or (kind is None and not account.config.compute):
        # by default a serverless job acts as its submitter
        return "you", account.user
    return machine_identity(account)


def _principal(resource: Mapping[str, Any]) -> str:
    """Return the object id of a resource's identity; user-assigned ones come first."""
    identity = resource.get("identity") or {}
    assigned = [
        str(entry.get("principalId") or "")
        for entry in (identity.get("userAssignedIdentities") or {}).values()
    ]
    principals = [*assigned, str(identity.get("principalId") or "")]
    return next(filter(None, principals), "")
