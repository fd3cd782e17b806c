"""The account facts in force: subscription, workspace, compute and datastore, from the spec or else the settings."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from cloudtrain.errors import UsageError
from cloudtrain.issues import Issue
from cloudtrain.providers.azure.cli_defaults import account_around
from cloudtrain.providers.cloud.account import complete, gather
from cloudtrain.settings import Settings
from cloudtrain.spec.model import Azure

FIELDS = ("subscription", "resource_group", "workspace", "location", "compute", "datastore", "repository")
WORKSPACE = ("subscription", "resource_group", "workspace")

_WHAT = {
    "subscription": ("00000000-0000-…", "the subscription's id (az account show)"),
    "resource_group": ("my-group", "the resource group of the workspace"),
    "workspace": ("my-workspace", "the Azure ML workspace to run in"),
}
_PLACEHOLDERS = {
    "subscription": "00000000-0000-0000-0000-000000000000",
    "resource_group": "not-set-yet",
    "workspace": "not-set-yet",
}
"""What a rehearsal says where nobody has said anything: nothing of it is ever asked for."""

_FORMS = {
    "subscription": (r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}", "its id: az account show"),
    "resource_group": (r"[\w.()-]{0,89}[\w()-]", "up to 90 letters, digits, and -_.()"),
    "workspace": (r"[a-zA-Z0-9][\w-]{2,32}", "3 to 33 letters, digits, hyphens and underscores"),
    "location": (r"[a-z]+[a-z0-9]*", "such as eastus, westeurope (az account list-locations)"),
    "compute": (r"[a-zA-Z][a-zA-Z0-9-]{1,31}", "the cluster's name alone: letters, digits and hyphens"),
    "datastore": (r"[a-zA-Z0-9_]{1,255}", "its name alone, such as workspaceblobstore"),
    "repository": (r"[a-z0-9][\w.-]*(:\d+)?(/[a-z0-9][a-z0-9._-]*)+", "myregistry.azurecr.io/train, without a tag"),
}


def account(azure: Azure, settings: Settings, *, rehearsal: bool) -> tuple[dict[str, Any], dict[str, str], list[Issue]]:
    """The facts by name, the origins of those that no spec line says, and what is missing."""
    facts, origins = gather("azure", azure, settings, FIELDS, account_around)
    problems = complete("azure", facts, _WHAT, _PLACEHOLDERS, rehearsal=rehearsal)
    facts["compute"] = (facts["compute"] or "").removeprefix("azureml:") or facts["compute"]
    facts["location"] = re.sub(r"[\s-]", "", facts["location"] or "").lower() or None  # `East US` is `eastus`
    return facts, origins, problems


def malformed(facts: Mapping[str, Any]) -> Iterator[Issue]:
    """What is wrong with the form of any fact."""
    for name, (form, hint) in _FORMS.items():
        value = facts.get(name)
        if value and not re.fullmatch(form, str(value)):
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
