"""What Azure refuses when roles are defined, assigned and deleted, after "Troubleshoot Azure RBAC"."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from tests.fakes.azure.permissions import KNOWN
from tests.fakes.azure.rbac import role_of
from tests.fakes.azure.roles import BUILT_IN
from tests.fakes.messages import ServiceError

if TYPE_CHECKING:
    from tests.fakes.azure.resource_manager.store import Resource, Store

ASSIGNMENTS, DEFINITIONS = (
    f"Microsoft.Authorization/role{name}" for name in ("Assignments", "Definitions")
)
IDENTITIES = "Microsoft.ManagedIdentity/userAssignedIdentities"


def check_assignment(store: Store, id_: str, properties: Mapping[str, Any]) -> None:
    """After "Troubleshoot Azure RBAC": one role once per principal and scope, for principals that
    there are.
    """
    principal = properties["principalId"]
    role = properties["roleDefinitionId"]
    known = {
        each.answers.get("principalId")
        for each in store.resources.values()
        if each.kind == IDENTITIES
    }
    if principal not in known | store.people:
        message = (
            f"Principal {principal} does not exist in the directory. Check that you have the"
            " correct principal ID."
        )
        raise ServiceError("PrincipalNotFound", message, 400)
    if role.rpartition("/")[2] not in {**BUILT_IN, **store.roles()}:
        message = (
            f"The specified role definition with ID '{role.rpartition('/')[2]}' does not exist."
        )
        raise ServiceError("RoleDefinitionDoesNotExist", message, 404)
    scope = id_.rpartition("/providers/")[0]
    for each in store.below(f"{scope}/providers/Microsoft.Authorization", ASSIGNMENTS):
        same = each.body["properties"]
        if each.id.lower() != id_.lower() and (same["principalId"], same["roleDefinitionId"]) == (
            principal,
            role,
        ):
            raise ServiceError("RoleAssignmentExists", "The role assignment already exists.", 409)


def check_definition(store: Store, id_: str, properties: Mapping[str, Any]) -> None:
    """After "Troubleshoot Azure RBAC", custom roles: a name of its own, and actions that providers
    have.
    """
    for each in store.resources.values():
        name = (each.body.get("properties") or {}).get("roleName")
        if (
            each.kind == DEFINITIONS
            and each.id.lower() != id_.lower()
            and name == properties["roleName"]
        ):
            raise ServiceError(
                "RoleDefinitionWithSameNameExists", "Role definition name must be unique.", 409
            )
    for action in role_of("", properties["permissions"]).actions:
        if action not in KNOWN:
            message = f"'{action}' does not match any of the actions supported by the providers."
            raise ServiceError("InvalidActionOrNotAction", message, 400)


def check_unused(store: Store, found: Resource) -> None:
    """A role that somebody has is not deleted."""
    if found.kind == DEFINITIONS and any(each.role == found.name for each in store.assignments()):
        message = (
            "There are existing role assignments referencing role (code:"
            " RoleDefinitionHasAssignments)"
        )
        raise ServiceError("RoleDefinitionHasAssignments", message, 400)
