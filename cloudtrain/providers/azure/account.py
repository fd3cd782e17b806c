"""Workspace of a job, from the spec, the settings or the Azure CLI. No network."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path

from cloudtrain.errors import Issue, UsageError
from cloudtrain.providers.azure.config import AzureConfig
from cloudtrain.providers.azure.request import VIRTUAL_CLUSTER
from cloudtrain.providers.azure.section import AzureSection
from cloudtrain.providers.shared.account import (
    CliDefault,
    RequiredSetting,
    SettingsReader,
    display_path,
    environment_value,
    ini_value,
)
from cloudtrain.settings import Settings
from cloudtrain_wire.bounded_files import read_regular_text

_SUBSCRIPTION = RequiredSetting(
    "00000000-0000-…",
    "the subscription's id (az account show)",
    placeholder="00000000-0000-0000-0000-000000000000",
)

_RESOURCE_GROUP = RequiredSetting(
    "my-group",
    "the resource group of the workspace",
    placeholder="not-set-yet",
)

_WORKSPACE = RequiredSetting(
    "my-workspace",
    "the Azure ML workspace to run in",
    placeholder="not-set-yet",
)

_FORMS = {
    "subscription": (
        r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}",
        "its id: az account show",
    ),
    "resource_group": (r"[\w.()-]{0,89}[\w()-]", "up to 90 letters, digits, and -_.()"),
    "workspace": (r"[a-zA-Z0-9][\w-]{2,32}", "3 to 33 letters, digits, hyphens and underscores"),
    "location": (r"[a-z]+[a-z0-9]*", "such as eastus, westeurope (az account list-locations)"),
    "compute": (
        r"[a-zA-Z][a-zA-Z0-9-]{1,31}",
        "the cluster's name alone: letters, digits and hyphens",
    ),
    "datastore": (r"[a-zA-Z0-9_]{1,255}", "its name alone, such as workspaceblobstore"),
    "repository": (
        r"[a-z0-9][\w.-]*(:\d+)?(/[a-z0-9][a-z0-9._-]*)+",
        "myregistry.azurecr.io/train, without a tag",
    ),
}

_DEFAULTS = {"resource_group": "group", "workspace": "workspace", "location": "location"}
"""Our settings -> their names in `az configure --defaults`."""


def account(
    azure: AzureSection,
    settings: Settings,
    *,
    rehearsal: bool,
) -> tuple[AzureConfig, SettingsReader]:
    """Return the workspace's settings, and the reader with origins and missing settings."""
    reader = SettingsReader("azure", azure, settings, cli_default_account, rehearsal=rehearsal)
    subscription = reader.required("subscription", _SUBSCRIPTION)
    group = reader.required("resource_group", _RESOURCE_GROUP)
    workspace = reader.required("workspace", _WORKSPACE)
    location = reader.optional("location")
    compute = reader.optional("compute")
    config = AzureConfig(
        subscription=subscription,
        resource_group=group,
        workspace=workspace,
        location=re.sub(r"[\s-]", "", location or "").lower() or None,  # `East US` is `eastus`
        compute=(compute or "").removeprefix("azureml:") or compute,
        datastore=reader.optional("datastore") or "",
        repository=reader.optional("repository"),
        placeholders=tuple(reader.placeholders),
    )
    return config, reader


def format_issues(config: AzureConfig) -> Iterator[Issue]:
    """Yield issues with the format of the workspace's settings."""
    for name, (form, hint) in _FORMS.items():
        value = getattr(config, name)
        if name == "compute" and re.search("/virtualclusters/", value or "", re.IGNORECASE):
            reason, hint = VIRTUAL_CLUSTER
            yield Issue(("azure", name), f"is not supported: {reason}", hint)
        elif value and not re.fullmatch(form, value):
            yield Issue(("azure", name), f"{value!r} is not a {name.replace('_', ' ')}", hint)


def workspace_of(settings: Settings) -> tuple[str, str, str]:
    """Return subscription, resource group and workspace, for commands that read no spec.

    Raise UsageError if one is missing or malformed.
    """
    config, reader = account(AzureSection(), settings, rehearsal=False)
    issues = list(reader.problems)
    issues += format_issues(config)
    for issue in issues:
        line = issue.at(reader.origins.get(issue.field, "")).line()
        raise UsageError(line, hint=issue.hint)

    return config.subscription, config.resource_group, config.workspace


def cli_default_account() -> dict[str, CliDefault]:
    """Return the settings of the Azure CLI with origins: variables first, then its files.

    As in "Azure CLI configuration" of Microsoft's documentation: defaults are in `~/.azure/config`,
    and `az account set` stores the subscription in `~/.azure/azureProfile.json`.
    """
    folder = Path(os.environ.get("AZURE_CONFIG_DIR") or "~/.azure").expanduser()
    defaults: dict[str, CliDefault] = {}
    for setting, name in _DEFAULTS.items():
        value = environment_value(f"AZURE_DEFAULTS_{name.upper()}")
        value = value or ini_value(folder / "config", "defaults", name)
        if value:
            defaults[setting] = value

    subscription = _subscription(folder / "azureProfile.json")
    if subscription:
        defaults["subscription"] = subscription

    return defaults


def _subscription(path: Path) -> CliDefault | None:
    try:
        document = json.loads(read_regular_text(path))
        for item in document["subscriptions"]:
            if item.get("isDefault"):
                return str(item["id"]), display_path(path)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None  # not logged in, or by other means: the setting is required

    return None
