"""The workspace in force, with its compute and datastore: from the spec, or else from the settings."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from cloudtrain.errors import UsageError
from cloudtrain.issues import Issue
from cloudtrain.providers.azure.cli_defaults import account_around
from cloudtrain.providers.azure.config import AzureConfig
from cloudtrain.providers.azure.section import AzureSection
from cloudtrain.providers.cloud.account import Account, Needed
from cloudtrain.settings import Settings

WORKSPACE = ("subscription", "resource_group", "workspace")

_SUBSCRIPTION = Needed(
    "00000000-0000-…",
    "the subscription's id (az account show)",
    placeholder="00000000-0000-0000-0000-000000000000",
)
_RESOURCE_GROUP = Needed("my-group", "the resource group of the workspace", placeholder="not-set-yet")
_WORKSPACE = Needed("my-workspace", "the Azure ML workspace to run in", placeholder="not-set-yet")

_FORMS = {
    "subscription": (r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}", "its id: az account show"),
    "resource_group": (r"[\w.()-]{0,89}[\w()-]", "up to 90 letters, digits, and -_.()"),
    "workspace": (r"[a-zA-Z0-9][\w-]{2,32}", "3 to 33 letters, digits, hyphens and underscores"),
    "location": (r"[a-z]+[a-z0-9]*", "such as eastus, westeurope (az account list-locations)"),
    "compute": (r"[a-zA-Z][a-zA-Z0-9-]{1,31}", "the cluster's name alone: letters, digits and hyphens"),
    "datastore": (r"[a-zA-Z0-9_]{1,255}", "its name alone, such as workspaceblobstore"),
    "repository": (r"[a-z0-9][\w.-]*(:\d+)?(/[a-z0-9][a-z0-9._-]*)+", "myregistry.azurecr.io/train, without a tag"),
}


def account(azure: AzureSection, settings: Settings, *, rehearsal: bool) -> tuple[AzureConfig, Account]:
    """The settings of the workspace, and what there is to say of them: origins, and what is missing."""
    said = Account("azure", azure, settings, account_around, rehearsal=rehearsal)
    subscription = said.required("subscription", _SUBSCRIPTION)
    group, workspace = said.required("resource_group", _RESOURCE_GROUP), said.required("workspace", _WORKSPACE)
    location, compute = said.optional("location"), said.optional("compute")
    config = AzureConfig(
        subscription=subscription,
        resource_group=group,
        workspace=workspace,
        location=re.sub(r"[\s-]", "", location or "").lower() or None,  # `East US` is `eastus`
        compute=(compute or "").removeprefix("azureml:") or compute,
        datastore=said.optional("datastore") or "",
        repository=said.optional("repository"),
        placeholders=tuple(said.placeholders),
    )
    return config, said


def malformed_settings(config: AzureConfig) -> Iterator[Issue]:
    """What is wrong with the form of any setting of the workspace."""
    return malformed({name: getattr(config, name) for name in _FORMS})


def malformed(settings: Mapping[str, str | None]) -> Iterator[Issue]:
    """The same, of settings by name."""
    for name, (form, hint) in _FORMS.items():
        value = settings.get(name)
        if value and not re.fullmatch(form, value):
            yield Issue(("azure", name), f"{value!r} is no {name.replace('_', ' ')}", hint)


def workspace_of(settings: Settings) -> tuple[str, str, str]:
    """Subscription, resource group and workspace where no spec is at hand. UsageError names what nobody has said."""
    around = account_around()
    said = {
        n: (settings[f"azure.{n}"], settings.origins[f"azure.{n}"]) for n in WORKSPACE if settings.get(f"azure.{n}")
    }
    said = {name: said.get(name) or around[name] for name in WORKSPACE if name in said or name in around}
    missing = [f"azure.{name}" for name in WORKSPACE if name not in said]
    if missing:
        hint = "in cloudtrain.toml, or as CLOUDTRAIN_AZURE_SUBSCRIPTION, …_RESOURCE_GROUP, …_WORKSPACE"
        raise UsageError(f"{', '.join(missing)} not set", hint=hint)
    subscription, group, workspace = (str(said[name][0]) for name in WORKSPACE)
    for issue in malformed({name: value for name, (value, _) in said.items()}):
        raise UsageError(issue.at(said[str(issue.path[-1])][1]).line(), hint=issue.hint)
    return subscription, group, workspace
