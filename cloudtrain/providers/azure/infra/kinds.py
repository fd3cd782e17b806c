"""What the resources of a deployment are in plain words, and which of them hold data."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from typing import Any

from cloudtrain.bundle import bundled

TAG = "cloudtrain-infra"
"""The tag of everything that a deployment consists of; its value is the deployment's name."""

ROLE_ASSIGNMENT = "Microsoft.Authorization/roleAssignments"
ROLE_DEFINITION = "Microsoft.Authorization/roleDefinitions"
BUDGET = "Microsoft.Consumption/budgets"
WORKSPACE = "Microsoft.MachineLearningServices/workspaces"
CLUSTER = f"{WORKSPACE}/computes"
IDENTITY = "Microsoft.ManagedIdentity/userAssignedIdentities"
STORAGE = "Microsoft.Storage/storageAccounts"
VAULT = "Microsoft.KeyVault/vaults"
LOGS = "Microsoft.OperationalInsights/workspaces"
INSIGHTS = "Microsoft.Insights/components"
REGISTRY = "Microsoft.ContainerRegistry/registries"

WORDS: Mapping[str, str] = {
    WORKSPACE: "Azure ML workspace",
    CLUSTER: "cluster",
    STORAGE: "storage account",
    f"{STORAGE}/blobServices": "recovery of deleted blobs",
    REGISTRY: "container registry",
    VAULT: "key vault",
    IDENTITY: "managed identity",
    f"{IDENTITY}/federatedIdentityCredentials": "trust in GitHub",
    ROLE_DEFINITION: "role",
    ROLE_ASSIGNMENT: "role assignment",
    LOGS: "log workspace",
    INSIGHTS: "Application Insights",
    BUDGET: "budget",
    "Microsoft.Network/virtualNetworks": "virtual network",
    "Microsoft.Network/networkSecurityGroups": "network security group",
    "Microsoft.Network/natGateways": "NAT gateway",
    "Microsoft.Network/publicIPAddresses": "public address",
    "Microsoft.Network/privateEndpoints": "private endpoint",
    "Microsoft.Network/privateEndpoints/privateDnsZoneGroups": "names of a private endpoint",
    "Microsoft.Network/privateDnsZones": "private DNS zone",
    "Microsoft.Network/privateDnsZones/virtualNetworkLinks": "link of a DNS zone",
}
"""Type -> what people call it, in the order in which they are told."""

DELETED_FIRST = (
    *(ROLE_ASSIGNMENT, ROLE_DEFINITION, BUDGET, "Microsoft.Network/privateEndpoints"),
    *("Microsoft.Network/privateDnsZones/virtualNetworkLinks", "Microsoft.Network/privateDnsZones"),
    *(CLUSTER, WORKSPACE, "Microsoft.Network/virtualNetworks", "Microsoft.Network/natGateways"),
    *("Microsoft.Network/publicIPAddresses", "Microsoft.Network/networkSecurityGroups"),
    *(IDENTITY, INSIGHTS, LOGS, REGISTRY, STORAGE, VAULT),
)
"""The order of deletion: what is used by others goes after them. Parts that go with another are not
named.
"""

HOLD_DATA = frozenset({STORAGE, VAULT, REGISTRY})
"""What users have stored: runs and inputs, secrets, images."""

ROLES: Mapping[str, str] = {
    "b78c5d69-af96-48a3-bf8d-a8b4d589de94": "Azure AI Administrator",
    "f6c7c914-8db3-469d-8ca1-694a8f32e121": "AzureML Data Scientist",
    "ba92f5b4-2d11-453d-a403-e96b0029c9fe": "Storage Blob Data Contributor",
    "00482a5a-887f-4fb3-b363-3b7fe8e74483": "Key Vault Administrator",
    "4633458b-17de-408a-b874-0445c86b69e6": "Key Vault Secrets User",
    "7f951dda-4ed3-4680-a7ca-43fe172d538d": "AcrPull",
    "8311e382-0749-4cb8-b61a-304f252e45ec": "AcrPush",
}
"""The built-in roles that the template assigns, after "Azure built-in roles" in Microsoft's
documentation.
"""

OWN_ROLE = "cloudtrain submitter"
"""How the name of the role begins that the template defines."""


def type_of(resource: str) -> str:
    """The type of a resource, from its id: provider and types without the names; of an extension,
    its own.
    """
    provider, *parts = resource.rpartition("/providers/")[2].split("/")
    return "/".join([provider, *parts[::2]])


def name_of(resource: str) -> str:
    """The last part of an id."""
    return resource.rpartition("/")[2]


def words_of(type_: str) -> str:
    """What a type is in plain words; its own name where it is none of ours."""
    return WORDS.get(type_, type_)


def rank(type_: str) -> int:
    """Where it stands among those that people are told."""
    return list(WORDS).index(type_) if type_ in WORDS else len(WORDS)


@cache
def template_text() -> str:
    """The template, as it lies in `infra/azure/`."""
    return (bundled("infra") / "azure" / "template.json").read_text(encoding="utf-8")


def template() -> dict[str, Any]:
    """The template as JSON."""
    document: dict[str, Any] = json.loads(template_text())
    return document


@cache
def api_versions() -> Mapping[str, str]:
    """Type -> the version of its API that the template uses."""
    return {resource["type"]: resource["apiVersion"] for resource in template()["resources"]}
