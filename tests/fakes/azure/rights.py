"""Azure RBAC's decisions, and Resource Manager's answers about roles and other resources.

The answers are read only, after the REST references of Microsoft.Authorization (Permissions - List For Resource, Role
Assignments - List For Scope, Role Definitions - Get; 2022-04-01), Microsoft.KeyVault (Vaults - Get)
and Resources - List.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from tests.fakes.messages import ServiceError

# Azure RBAC's decision about one action: the grants of a principal's roles at a scope, inherited
# ones included.
# After "Understand Azure role definitions", "Understand scope for Azure RBAC" and "How Azure RBAC
# determines if a user has access to a resource" in Microsoft's documentation. Deny assignments and
# conditions are not imitated.


@dataclass(frozen=True, kw_only=True)
class Role:
    """A role definition."""

    name: str
    actions: tuple[str, ...] = ()
    not_actions: tuple[str, ...] = ()
    data_actions: tuple[str, ...] = ()
    not_data_actions: tuple[str, ...] = ()

    def grants(self, action: str, *, on_data: bool) -> bool:
        """Return whether it allows an action: of management, or on data."""
        allowed = self.data_actions if on_data else self.actions
        excluded = self.not_data_actions if on_data else self.not_actions
        return _matches_any(allowed, action) and not _matches_any(excluded, action)

    def without(self, action: str) -> Role:
        """The same role, but for one action that it names."""
        remaining, kept_on_data = (
            tuple(name for name in names if name != action)
            for names in (self.actions, self.data_actions)
        )
        return replace(self, actions=remaining, data_actions=kept_on_data)

    def permissions(self) -> dict[str, list[str]]:
        """As Resource Manager shows it."""
        return {
            "actions": [*self.actions],
            "notActions": [*self.not_actions],
            "dataActions": [*self.data_actions],
            "notDataActions": [*self.not_data_actions],
        }


@dataclass(frozen=True, kw_only=True)
class Assignment:
    """A role that a principal has at a scope, and at everything below it."""

    principal: str
    """An object id."""
    role: str
    """The last part of the definition's id."""
    scope: str
    condition: str = ""
    """A condition of attributes; it is shown, and not evaluated."""


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """One action on one resource."""

    action: str
    scope: str
    """The resource's id."""
    on_data: bool = False


@dataclass(kw_only=True)
class Access:
    """Who has which role where in a subscription."""

    roles: dict[str, Role]
    """By the last part of their ids: built-in and of this subscription."""
    assignments: list[Assignment] = field(default_factory=list)
    is_enforced: bool = False
    """True if calls and jobs need granted rights; else everybody may do everything."""
    attempted: set[str] = field(default_factory=set)
    """The actions that were decided about."""

    def assigned(self, principal: str, scope: str) -> Iterator[Assignment]:
        """Return a principal's roles at a scope: assigned there, or above."""
        for assignment in self.assignments:
            if assignment.principal == principal and f"{scope}/".lower().startswith(
                f"{assignment.scope.rstrip('/')}/".lower()
            ):
                yield assignment

    def allows(self, principal: str, attempt: Attempt) -> bool:
        """Return whether any role of a principal grants an action."""
        self.attempted.add(attempt.action)
        if not self.is_enforced:
            return True
        granted = (
            self.roles[assignment.role] for assignment in self.assigned(principal, attempt.scope)
        )
        return any(role.grants(attempt.action, on_data=attempt.on_data) for role in granted)


def role_of(name: str, permissions: Iterable[dict[str, Any]]) -> Role:
    """Return a role as its definition says: its permissions together."""
    parts: dict[str, list[str]] = defaultdict(list)
    for permission in permissions:
        for key, patterns in permission.items():
            parts[key] += patterns
    return Role(
        name=name,
        actions=tuple(parts["actions"]),
        not_actions=tuple(parts["notActions"]),
        data_actions=tuple(parts["dataActions"]),
        not_data_actions=tuple(parts["notDataActions"]),
    )


def _matches_any(patterns: Iterable[str], action: str) -> bool:
    return any(_compiled(pattern).fullmatch(action) for pattern in patterns)


@cache
def _compiled(pattern: str) -> re.Pattern[str]:
    """Compile a pattern: an asterisk matches anything, slashes too; case does not matter."""
    return re.compile(re.escape(pattern).replace(r"\*", ".*"), re.IGNORECASE)


# The built-in roles that infra/azure and the tests assign, as their pages define them.

OWNER = "8e3af657-a8ff-443c-a75c-2fe8c4bcb635"
READER = "acdd72a7-3385-48ef-bd42-f606fba81ae7"
SCIENTIST = "f6c7c914-8db3-469d-8ca1-694a8f32e121"
BLOBS = "ba92f5b4-2d11-453d-a403-e96b0029c9fe"
PULL = "7f951dda-4ed3-4680-a7ca-43fe172d538d"
PUSH = "8311e382-0749-4cb8-b61a-304f252e45ec"
SECRETS = "4633458b-17de-408a-b874-0445c86b69e6"


def _built_in() -> Mapping[str, Role]:
    path = Path(__file__).parents[2] / "data" / "azure-roles.json"
    definitions = json.loads(path.read_text())
    del definitions["source"]
    return {
        id_: role_of(role["roleName"], role["permissions"]) for id_, role in definitions.items()
    }


BUILT_IN = _built_in()


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
    (
        "rights",
        "GetVaultSecret",
        "GET",
        rf"{_ID}/providers/Microsoft\.KeyVault/vaults/[^/]+/secrets/(?P<name>[^/]+)",
    ),
    (
        "rights",
        "GetStorage",
        "GET",
        rf"{_ID}/providers/Microsoft\.Storage/storageAccounts/(?P<name>.+)",
    ),
    (
        "rights",
        "GetContainerRegistry",
        "GET",
        rf"{_ID}/providers/Microsoft\.ContainerRegistry/registries/(?P<name>[^/]+)",
    ),
)
_VERSIONS = {
    "GetVault": ("2024-11-01",),
    "GetVaultSecret": ("2024-11-01",),
    "GetStorage": ("2024-01-01",),
    "GetContainerRegistry": ("2023-07-01",),
    "ListResources": ("2021-04-01",),
    "GetDeployment": ("2021-04-01",),
}
RIGHTS = {
    "ListPermissions": "Microsoft.Authorization/permissions/read",
    "ListRoleAssignments": "Microsoft.Authorization/roleAssignments/read",
    "GetRoleDefinition": "Microsoft.Authorization/roleDefinitions/read",
    "GetVault": "Microsoft.KeyVault/vaults/read",
    "GetVaultSecret": "Microsoft.KeyVault/vaults/secrets/read",
    "GetStorage": "Microsoft.Storage/storageAccounts/read",
    "GetContainerRegistry": "Microsoft.ContainerRegistry/registries/read",
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
    gone: set[str] = field(default_factory=set)
    """Names of resources, and of secrets in vaults, that were deleted."""
    properties: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Properties of resources by their names, the last part of the id."""
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
        return self._resource(call.path)

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

    def _resource(self, path: str) -> dict[str, Any]:
        name = path.rpartition("/")[2]
        if name in self.gone:
            message = f"The Resource '{path.rpartition('/providers/')[2]}' was not found."
            raise ServiceError("ResourceNotFound", message, 404)
        properties = {"enableRbacAuthorization": True, **self.properties.get(name, {})}
        return {"id": path, "properties": properties}


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
                "condition": assignment.condition or None,
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
