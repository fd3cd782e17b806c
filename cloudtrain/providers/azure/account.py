"""The settings of the Azure ML workspace and its compute: from the spec, the settings or the Azure
CLI.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from cloudtrain.errors import UsageError
from cloudtrain.issues import Issue
from cloudtrain.providers.azure.config import AzureConfig
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
from cloudtrain_launcher.packages.bounded_files import read_regular_text

WORKSPACE = ("subscription", "resource_group", "workspace")

_SUBSCRIPTION = RequiredSetting(
    "00000000-0000-…",
    "the subscription's id (az account show)",
    placeholder="00000000-0000-0000-0000-000000000000",
)
_RESOURCE_GROUP = RequiredSetting(
    "my-group", "the resource group of the workspace", placeholder="not-set-yet"
)
_WORKSPACE = RequiredSetting(
    "my-workspace", "the Azure ML workspace to run in", placeholder="not-set-yet"
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
"""Our settings, and their names in `az configure --defaults`."""


def account(
    azure: AzureSection, settings: Settings, *, rehearsal: bool
) -> tuple[AzureConfig, SettingsReader]:
    """The workspace's settings, and the reader with their origins and what is missing."""
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
    """What is wrong with the format of the workspace's settings."""
    return setting_issues({name: getattr(config, name) for name in _FORMS})


def setting_issues(settings: Mapping[str, str | None]) -> Iterator[Issue]:
    """What is wrong with the format of settings, given by name."""
    for name, (form, hint) in _FORMS.items():
        value = settings.get(name)
        if value and not re.fullmatch(form, value):
            yield Issue(("azure", name), f"{value!r} is no {name.replace('_', ' ')}", hint)


def workspace_of(settings: Settings) -> tuple[str, str, str]:
    """Subscription, resource group and workspace, for commands that read no spec. UsageError names
    those not set.
    """
    defaults = cli_default_account()
    found = {
        n: (settings[f"azure.{n}"], settings.origins[f"azure.{n}"])
        for n in WORKSPACE
        if settings.get(f"azure.{n}")
    }
    found = {
        name: found.get(name) or defaults[name]
        for name in WORKSPACE
        if name in found or name in defaults
    }
    missing = [f"azure.{name}" for name in WORKSPACE if name not in found]
    if missing:
        hint = (
            "in cloudtrain.toml, or as CLOUDTRAIN_AZURE_SUBSCRIPTION, …_RESOURCE_GROUP, …_WORKSPACE"
        )
        raise UsageError(f"{', '.join(missing)} not set", hint=hint)
    subscription, group, workspace = (str(found[name][0]) for name in WORKSPACE)
    for issue in setting_issues({name: value for name, (value, _) in found.items()}):
        raise UsageError(issue.at(found[str(issue.path[-1])][1]).line(), hint=issue.hint)
    return subscription, group, workspace


def cli_default_account(environ: Mapping[str, str] = os.environ) -> dict[str, CliDefault]:
    """The settings that the Azure CLI has, each with its origin: variables first, then
    `~/.azure/config`.

    As in "Azure CLI configuration" of Microsoft's documentation. `az account set` stores the chosen
    subscription in `~/.azure/azureProfile.json`.
    """
    folder = Path(environ.get("AZURE_CONFIG_DIR") or "~/.azure").expanduser()
    found: dict[str, CliDefault] = {}
    for setting, name in _DEFAULTS.items():
        value = environment_value(environ, f"AZURE_DEFAULTS_{name.upper()}") or ini_value(
            folder / "config", "defaults", name
        )
        found |= {setting: value} if value else {}
    subscription = _subscription(folder / "azureProfile.json")
    return found | ({"subscription": subscription} if subscription else {})


def _subscription(path: Path) -> CliDefault | None:
    try:
        document = json.loads(read_regular_text(path))
        chosen = next(item for item in document["subscriptions"] if item.get("isDefault"))
        return str(chosen["id"]), display_path(path)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, StopIteration):
        return None  # not logged in, or logged in by other means: then the setting is required
