"""Resource Manager's answers about role assignments, and about the resources beside the workspace:
read only.

After the REST references of Microsoft.Authorization (Permissions - List For Resource, Role
Assignments - List For Scope, Role Definitions - Get; 2022-04-01), Microsoft.KeyVault (Vaults - Get)
and Resources - List.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from tests.fakes.azure.rbac import Access
from tests.fakes.messages import ServiceError

_ID = r"(?P<scope>/subscriptions/[^/]+(?:/resourceGroups/[^/]+(?:/providers/.+?)?)?)"
AUTHORIZATION = "/providers/Microsoft.Authorization"
ROUTES = (
    ("rights", "ListPermissions", "GET", f"{_ID}{AUTHORIZATION}/permissions"),
    ("rights", "ListRoleAssignments", "GET", f"{_ID}{AUTHORIZATION}/roleAssignments"),
    (
        "rights",
        "GetRoleDefinition",
        "GET",
        rf"(?P<scope>.*){AUTHORIZATION}/roleDefinitions/(?P<name>[^/]+)",
    ),
    ("rights", "ListResources", "GET", r"/subscriptions/(?P<subscription>[^/]+)/resources"),
    (
        "rights",
        "GetDeployment",
        "GET",
        rf"{_ID}/providers/Microsoft\.Resources/deployments/(?P<name>[^/]+)",
    ),
    ("rights", "GetVault", "GET", rf"{_ID}/providers/Microsoft\.KeyVault/vaults/(?P<name>[^/]+)"),
)
_VERSIONS = {
    "GetVault": ("2024-11-01",),
    "ListResources": ("2021-04-01",),
    "GetDeployment": ("2021-04-01",),
}
RIGHTS = {
    "ListPermissions": "Microsoft.Authorization/permissions/read",
    "ListRoleAssignments": "Microsoft.Authorization/roleAssignments/read",
    "GetRoleDefinition": "Microsoft.Authorization/roleDefinitions/read",
    "GetVault": "Microsoft.KeyVault/vaults/read",
    "GetDeployment": "Microsoft.Resources/deployments/read",
}
"""The action of each call.

Listing the resources of a subscription returns all resources where the caller has a role.
"""


class RightsCall(NamedTuple):
    """One call, and whose it is."""

    operation: str
    scope: str
    """The subject of the call."""
    path: str
    query: Mapping[str, str]
    caller: str
    """An object id."""


@dataclass
class Rights:
    """Tests change any of it."""

    resources: list[str] = field(default_factory=list)
    """Ids of resources outside the workspace."""
    vaults: set[str] = field(default_factory=set)
    deployments: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Name of a deployment -> its properties."""

    def call(self, call: RightsCall, access: Access) -> dict[str, Any]:
        """One call; ServiceError is what it answers instead."""
        versions = _VERSIONS.get(call.operation, ("2022-04-01",))
        if call.query.get("api-version") not in versions:
            message = (
                "No registered resource provider found for API version"
                f" '{call.query.get('api-version')}'"
            )
            raise ServiceError("NoRegisteredProviderFound", message, 400)
        filter_text = call.query.get("$filter", "")
        if call.operation == "ListPermissions":
            assigned = access.assigned(call.caller, call.scope)
            return {
                "value": [access.roles[assignment.role].permissions() for assignment in assigned]
            }
        if call.operation == "ListRoleAssignments":
            return {"value": assignments(call.scope, filter_text, access)}
        if call.operation == "GetRoleDefinition":
            return _definition(call.path, access)
        if call.operation == "ListResources":
            return self._list(filter_text, call.caller, access)
        if call.operation == "GetDeployment":
            return self._deployment(call.path)
        return self._vault(call.path)

    def _list(self, filter_text: str, caller: str, access: Access) -> dict[str, Any]:
        match = re.fullmatch(r"resourceType eq '([^']+)' and name eq '([^']+)'", filter_text)
        if match is None:
            raise ServiceError(
                "InvalidFilterInQueryString", f"Invalid $filter '{filter_text}'.", 400
            )
        end = f"/providers/{match[1]}/{match[2]}".lower()
        resources = [resource for resource in self.resources if resource.lower().endswith(end)]
        visible = [
            resource
            for resource in resources
            if not access.is_enforced or any(access.assigned(caller, resource))
        ]
        return {"value": [{"id": resource} for resource in visible]}

    def _deployment(self, path: str) -> dict[str, Any]:
        name = path.rpartition("/")[2]
        if name not in self.deployments:
            message = f"Deployment '{name}' could not be found."
            raise ServiceError("DeploymentNotFound", message, 404)
        return {"id": path, "name": name, "properties": self.deployments[name]}

    def _vault(self, path: str) -> dict[str, Any]:
        name = path.rpartition("/")[2]
        if name not in self.vaults:
            message = f"The Resource 'Microsoft.KeyVault/vaults/{name}' was not found."
            raise ServiceError("ResourceNotFound", message, 404)
        return {
            "id": path,
            "properties": {"enableRbacAuthorization": True},
        }


def assignments(scope: str, filter_text: str, access: Access) -> list[dict[str, Any]]:
    """Return the assignments: `assignedTo` includes groups and scopes above; `principalId eq` would
    not.
    """
    who = re.fullmatch(r"assignedTo\('([0-9a-f-]{36})'\)", filter_text)
    if who is None:
        raise ServiceError("UnsupportedQuery", f"The filter '{filter_text}' is not supported.", 400)
    subscription = "/".join(scope.split("/")[:3])
    return [
        {
            "properties": {
                "roleDefinitionId": f"{subscription}{AUTHORIZATION}/roleDefinitions/{assignment.role}",
                "principalId": assignment.principal,
                "scope": assignment.scope,
            }
        }
        for assignment in access.assigned(who[1], scope)
    ]


def _definition(path: str, access: Access) -> dict[str, Any]:
    name = path.rpartition("/")[2]
    role = access.roles.get(name)
    if role is None:
        raise ServiceError(
            "RoleDefinitionDoesNotExist", f"The role definition {name} does not exist.", 404
        )
    return {"id": path, "properties": {"roleName": role.name, "permissions": [role.permissions()]}}
