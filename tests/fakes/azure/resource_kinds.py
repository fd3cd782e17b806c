"""The types of resources of the template: versions, names and properties of Microsoft's API.

Versions and properties are those of Microsoft's API reference
(Azure/azure-resource-manager-schemas, snapshot of 2026-08-16; Microsoft.Network and
Microsoft.Insights/components after their pages "ARM template reference"). A property that is not
here is refused, as a misspelt one would be.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True, slots=True)
class Kind:
    """One type of resource."""

    version: str
    """The version of its API that we use."""
    name: str = r"[\w.()-]{1,80}"
    """Pattern of the last part of its name, after "Naming rules and restrictions for Azure
    resources".
    """
    properties: frozenset[str] = frozenset()
    required: frozenset[str] = frozenset()
    is_located: bool = False
    """True if it needs a location."""


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_NETWORK = "2024-05-01"
KINDS: Mapping[str, Kind] = {
    "Microsoft.ManagedIdentity/userAssignedIdentities": Kind(
        version="2024-11-30",
        name=r"[a-zA-Z0-9][\w-]{2,127}",
        is_located=True,
    ),
    "Microsoft.ManagedIdentity/userAssignedIdentities/federatedIdentityCredentials": Kind(
        version="2024-11-30",
        name=r"[a-zA-Z0-9][\w-]{2,119}",
        properties=_words("audiences issuer subject"),
        required=_words("audiences issuer subject"),
    ),
    "Microsoft.Storage/storageAccounts": Kind(
        version="2025-06-01",
        name=r"[a-z0-9]{3,24}",
        properties=_words(
            "accessTier allowBlobPublicAccess allowCrossTenantReplication allowSharedKeyAccess"
            " defaultToOAuthAuthentication encryption isHnsEnabled isLocalUserEnabled"
            " minimumTlsVersion networkAcls publicNetworkAccess supportsHttpsTrafficOnly"
        ),
        is_located=True,
    ),
    "Microsoft.Storage/storageAccounts/blobServices": Kind(
        version="2025-06-01",
        name="default",
        properties=_words(
            "deleteRetentionPolicy containerDeleteRetentionPolicy isVersioningEnabled"
        ),
    ),
    "Microsoft.KeyVault/vaults": Kind(
        version="2024-11-01",
        name=r"(?!.*--)[a-zA-Z][a-zA-Z0-9-]{1,22}[a-zA-Z0-9]",
        properties=_words(
            "accessPolicies createMode enablePurgeProtection enableRbacAuthorization"
            " enableSoftDelete networkAcls publicNetworkAccess sku softDeleteRetentionInDays"
            " tenantId"
        ),
        required=_words("tenantId sku"),
        is_located=True,
    ),
    "Microsoft.ContainerRegistry/registries": Kind(
        version="2025-04-01",
        name=r"[a-zA-Z0-9]{5,50}",
        properties=_words(
            "adminUserEnabled anonymousPullEnabled dataEndpointEnabled encryption"
            " networkRuleBypassOptions networkRuleSet policies publicNetworkAccess zoneRedundancy"
        ),
        is_located=True,
    ),
    "Microsoft.OperationalInsights/workspaces": Kind(
        version="2025-02-01",
        name=r"[a-zA-Z0-9][a-zA-Z0-9-]{2,61}[a-zA-Z0-9]",
        properties=_words("features retentionInDays sku workspaceCapping"),
        is_located=True,
    ),
    "Microsoft.Insights/components": Kind(
        version="2020-02-02",
        name=r"[^%&\\?/]{1,260}",
        properties=_words("Application_Type WorkspaceResourceId DisableLocalAuth RetentionInDays"),
        required=_words("Application_Type"),
        is_located=True,
    ),
    "Microsoft.MachineLearningServices/workspaces": Kind(
        version="2025-06-01",
        name=r"[a-zA-Z0-9][\w-]{2,32}",
        properties=_words(
            "allowPublicAccessWhenBehindVnet applicationInsights containerRegistry description"
            " enableDataIsolation encryption friendlyName hbiWorkspace imageBuildCompute keyVault"
            " managedNetwork primaryUserAssignedIdentity publicNetworkAccess"
            " serverlessComputeSettings storageAccount systemDatastoresAuthMode v1LegacyMode"
        ),
        required=_words("storageAccount keyVault applicationInsights"),
        is_located=True,
    ),
    "Microsoft.MachineLearningServices/workspaces/computes": Kind(
        version="2025-06-01",
        name=r"[a-zA-Z][a-zA-Z0-9-]{1,31}",
        properties=_words(
            "computeType computeLocation description disableLocalAuth properties resourceId"
        ),
        required=_words("computeType"),
        is_located=True,
    ),
    "Microsoft.Authorization/roleAssignments": Kind(
        version="2022-04-01",
        name=r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}",
        properties=_words(
            "condition conditionVersion description principalId principalType roleDefinitionId"
        ),
        required=_words("principalId roleDefinitionId"),
    ),
    "Microsoft.Authorization/roleDefinitions": Kind(
        version="2022-04-01",
        name=r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}",
        properties=_words("assignableScopes description permissions roleName type"),
        required=_words("assignableScopes permissions roleName"),
    ),
    "Microsoft.Consumption/budgets": Kind(
        version="2023-11-01",
        name=r"[\w-]{1,63}",
        properties=_words("amount category filter notifications timeGrain timePeriod"),
        required=_words("amount category timeGrain timePeriod"),
    ),
    "Microsoft.Network/networkSecurityGroups": Kind(
        version=_NETWORK, properties=_words("securityRules"), is_located=True
    ),
    "Microsoft.Network/publicIPAddresses": Kind(
        version=_NETWORK,
        properties=_words("publicIPAllocationMethod idleTimeoutInMinutes"),
        is_located=True,
    ),
    "Microsoft.Network/natGateways": Kind(
        version=_NETWORK,
        properties=_words("publicIpAddresses idleTimeoutInMinutes"),
        is_located=True,
    ),
    "Microsoft.Network/virtualNetworks": Kind(
        version=_NETWORK,
        name=r"[a-zA-Z0-9][\w.-]{0,62}\w",
        properties=_words("addressSpace subnets"),
        is_located=True,
    ),
    "Microsoft.Network/privateDnsZones": Kind(version="2024-06-01", is_located=True),
    "Microsoft.Network/privateDnsZones/virtualNetworkLinks": Kind(
        version="2024-06-01",
        properties=_words("registrationEnabled virtualNetwork"),
        is_located=True,
    ),
    "Microsoft.Network/privateEndpoints": Kind(
        version=_NETWORK,
        name=r"[a-zA-Z0-9][\w.-]{0,62}\w",
        properties=_words("subnet privateLinkServiceConnections"),
        is_located=True,
    ),
    "Microsoft.Network/privateEndpoints/privateDnsZoneGroups": Kind(
        version=_NETWORK, properties=_words("privateDnsZoneConfigs")
    ),
}

AML_COMPUTE = _words(
    "enableNodePublicIp isolatedNetwork osType remoteLoginPortPublicAccess scaleSettings subnet"
    " userAccountCredentials vmPriority vmSize"
)
"""The properties of an AmlCompute cluster, one level further down."""


def problem(
    kind: str, api_version: str, name: str, body: Mapping[str, Any]
) -> tuple[str, str] | None:
    """Return code and message of a provider's refusal of a resource; None if it accepts it."""
    resource_kind = KINDS.get(kind)
    provider, _, type_ = kind.partition("/")
    if resource_kind is None:
        return (
            "InvalidResourceType",
            f"The resource type '{type_}' could not be found in the namespace '{provider}'.",
        )
    if api_version != resource_kind.version:
        message = (
            f"No registered resource provider found for location '{body.get('location')}' and API"
            f" version '{api_version}' for type '{type_}'. The supported api-versions are"
            f" '{resource_kind.version}'."
        )
        return "NoRegisteredProviderFound", message
    if not re.fullmatch(resource_kind.name, name):
        return "InvalidResourceName", f"Resource name {name} is invalid for type {kind}."
    if resource_kind.is_located and not body.get("location"):
        return "LocationRequired", f"The location property is required for this definition: {name}."
    return _property_problem(kind, resource_kind, dict(body.get("properties") or {}))


def _property_problem(
    kind: str, resource_kind: Kind, properties: dict[str, Any]
) -> tuple[str, str] | None:
    inner = properties.get("properties") or {} if kind.endswith("/computes") else {}
    unknown = {*(set(properties) - resource_kind.properties), *(set(inner) - AML_COMPUTE)}
    if unknown:
        message = (
            f"Could not find member '{min(unknown)}' on object of type '{kind}'. Path"
            f" 'properties.{min(unknown)}'."
        )
        return "InvalidRequestContent", message
    missing = {name for name in resource_kind.required if properties.get(name) in (None, "")}
    if missing:
        return (
            "InvalidRequestContent",
            f"Required property '{min(missing)}' not found in JSON. Path 'properties'.",
        )
    return None
