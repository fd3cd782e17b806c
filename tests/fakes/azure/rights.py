"""Who has which role, and the resources beside the workspace, as ARM tells those who ask: it only reads.

After the REST references of Microsoft.Authorization (Permissions - List For Resource, Role Assignments - List For
Scope, Role Definitions - Get By Id; 2022-04-01), Microsoft.KeyVault (Vaults - Get) and Resources - List; the roles are
those of "Azure built-in roles".
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tests.fakes.azure.tokens import CLIENT, OBJECT_ID
from tests.fakes.messages import ServiceError

CLUSTER_IDENTITY = "cccccccc-0000-0000-0000-000000000001"
WORKSPACE_IDENTITY = "cccccccc-0000-0000-0000-000000000002"
VAULT, REGISTRY = "loopback-vault", "loopbackacr"
_ML = "Microsoft.MachineLearningServices/workspaces"
_NOT_IN = ("/computes/write", "/computes/delete", "/delete", "/write", "/connections/read")

BLOBS, PULL, SECRETS, SCIENTIST, READER = (
    "ba92f5b4-2d11-453d-a403-e96b0029c9fe",
    "7f951dda-4ed3-4680-a7ca-43fe172d538d",
    "4633458b-17de-408a-b874-0445c86b69e6",
    "f6c7c914-8db3-469d-8ca1-694a8f32e121",
    "acdd72a7-3385-48ef-bd42-f606fba81ae7",
)
"""The ids of the roles, which are the same everywhere."""

_BLOB = "Microsoft.Storage/storageAccounts/blobServices/containers"
DEFINITIONS: Mapping[str, dict[str, list[str]]] = {
    BLOBS: {
        "actions": [f"{_BLOB}/{verb}" for verb in ("delete", "read", "write")],
        "dataActions": [f"{_BLOB}/blobs/{verb}" for verb in ("delete", "read", "write")],
    },
    PULL: {"actions": ["Microsoft.ContainerRegistry/registries/pull/read"]},
    SECRETS: {
        "dataActions": [f"Microsoft.KeyVault/vaults/secrets/{verb}/action" for verb in ("getSecret", "readMetadata")]
    },
    SCIENTIST: {
        "actions": [f"{_ML}/*/read", f"{_ML}/*/action", f"{_ML}/*/delete", f"{_ML}/*/write"],
        "notActions": [f"{_ML}{end}" for end in _NOT_IN],
    },
    READER: {"actions": ["*/read"]},
}

_ID = r"(?P<scope>/subscriptions/[^/]+(?:/resourceGroups/[^/]+(?:/providers/.+?)?)?)"
_AUTHORIZATION = "/providers/Microsoft.Authorization"
ROUTES = (
    ("rights", "ListPermissions", "GET", f"{_ID}{_AUTHORIZATION}/permissions"),
    ("rights", "ListRoleAssignments", "GET", f"{_ID}{_AUTHORIZATION}/roleAssignments"),
    ("rights", "GetRoleDefinition", "GET", rf"(?P<scope>.*){_AUTHORIZATION}/roleDefinitions/(?P<name>[^/]+)"),
    ("rights", "ListResources", "GET", r"/subscriptions/(?P<subscription>[^/]+)/resources"),
    ("rights", "GetVault", "GET", rf"{_ID}/providers/Microsoft\.KeyVault/vaults/(?P<name>[^/]+)"),
)
_VERSIONS = {"GetVault": ("2023-07-01", "2024-11-01"), "ListResources": ("2021-04-01",)}
_ACTIONS = {
    "ListPermissions": "Microsoft.Authorization/permissions/read",
    "ListRoleAssignments": "Microsoft.Authorization/roleAssignments/read",
    "GetRoleDefinition": "Microsoft.Authorization/roleDefinitions/read",
    "ListResources": "Microsoft.Resources/subscriptions/resources/read",
    "GetVault": "Microsoft.KeyVault/vaults/read",
}


@dataclass
class Rights:
    """Tests change any of it."""

    of_user: list[str] = field(default_factory=lambda: [SCIENTIST])
    """The user's roles on the workspace."""
    assigned: list[tuple[str, str, str]] = field(default_factory=list)
    """Kind of the resource (`Microsoft.KeyVault/vaults`), object id, role."""
    resources: list[str] = field(default_factory=list)
    """Ids of resources beside those of the workspace."""
    uses_roles: bool = True
    """Whether the vault goes by roles; else by access policies, of which it has none."""
    vaults: set[str] = field(default_factory=lambda: {VAULT})

    def call(self, operation: str, path: str, query: Mapping[str, str]) -> dict[str, Any]:
        """One call; ServiceError is what it answers instead."""
        versions = _VERSIONS.get(operation, ("2022-04-01",))
        if query.get("api-version") not in versions:
            message = f"No registered resource provider found for API version '{query.get('api-version')}'"
            raise ServiceError("NoRegisteredProviderFound", message, 400)
        if operation == "ListPermissions":
            return {"value": [_permissions(role) for role in self.of_user]}
        if operation == "ListRoleAssignments":
            return {"value": list(self._assignments(path, query.get("$filter", "")))}
        if operation == "GetRoleDefinition":
            role = path.rpartition("/")[2]
            if role not in DEFINITIONS:
                raise ServiceError("RoleDefinitionDoesNotExist", f"The role definition {role} does not exist.", 404)
            return {"id": path, "properties": {"type": "BuiltInRole", "permissions": [_permissions(role)]}}
        return self._resources(query.get("$filter", "")) if operation == "ListResources" else self._vault(path)

    def _assignments(self, path: str, asked: str) -> list[dict[str, Any]]:
        """`assignedTo` finds those of groups and of scopes above too; `principalId eq` would not."""
        who = re.fullmatch(r"assignedTo\('([0-9a-f-]{36})'\)", asked)
        if who is None:
            raise ServiceError("UnsupportedQuery", f"The filter '{asked}' is not supported.", 400)
        scope = path.partition(_AUTHORIZATION)[0]
        subscription = "/".join(path.split("/")[:3])
        return [
            {
                "properties": {
                    "roleDefinitionId": f"{subscription}{_AUTHORIZATION}/roleDefinitions/{role}",
                    "principalId": principal,
                    "scope": scope,
                }
            }
            for kind, principal, role in self.assigned
            if principal == who[1] and f"/providers/{kind}/".lower() in f"{scope}/".lower()
        ]

    def _resources(self, asked: str) -> dict[str, Any]:
        wanted = re.fullmatch(r"resourceType eq '([^']+)' and name eq '([^']+)'", asked)
        if wanted is None:
            raise ServiceError("InvalidFilterInQueryString", f"Invalid $filter '{asked}'.", 400)
        end = f"/providers/{wanted[1]}/{wanted[2]}".lower()
        return {"value": [{"id": each} for each in self.resources if each.lower().endswith(end)]}

    def _vault(self, path: str) -> dict[str, Any]:
        name = path.rpartition("/")[2]
        if name not in self.vaults:
            message = f"The Resource 'Microsoft.KeyVault/vaults/{name}' was not found."
            raise ServiceError("ResourceNotFound", message, 404)
        return {"id": path, "properties": {"enableRbacAuthorization": self.uses_roles, "accessPolicies": []}}


def denied(operation: str, path: str) -> ServiceError:
    """The refusal of one who may not look."""
    message = (
        f"The client '{CLIENT}' with object id '{OBJECT_ID}' does not have authorization to perform action "
        f"'{_ACTIONS[operation]}' over scope '{path}' or the scope is invalid."
    )
    return ServiceError("AuthorizationFailed", message, 403)


def _permissions(role: str) -> dict[str, list[str]]:
    return {"actions": [], "notActions": [], "dataActions": [], "notDataActions": [], **DEFINITIONS[role]}
