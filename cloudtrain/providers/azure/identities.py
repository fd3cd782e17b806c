"""Identities of a job and its machines, and the rights that their roles give."""

from __future__ import annotations

from collections.abc import Iterable

from cloudtrain.checkup import NotCheckedError
from cloudtrain.errors import RefusedError
from cloudtrain.providers.azure.rights import SCIENTIST, missing, rights_of
from cloudtrain.providers.azure.things import Identity, Resource, Things

ROLES_VERSION = "2022-04-01"


def machines_identity(
    things: Things, named: Iterable[str] = (), *, of_job: bool = False
) -> Identity:
    """Return the identity of the machines: the cluster's, or else the workspace's.

    After "Set up authentication between Azure Machine Learning and other services". `named`: ids
    of one among several. `of_job`: a job on a cluster has the cluster's alone.
    """
    owners = {f"the workspace {things.config.workspace}": things.workspace}
    if compute := things.config.compute:
        if not things.compute:
            raise NotCheckedError(f"the cluster {compute} was not found")
        cluster = {f"the cluster {compute}": things.compute}
        owners = cluster if of_job else cluster | owners

    ids = {value.lower() for value in named}
    for owner, document in owners.items():
        identity = document.get("identity") or {}
        entries = {**(identity.get("userAssignedIdentities") or {}), "": identity}
        for name, entry in entries.items():
            names = {name.lower(), entry.get("principalId"), entry.get("clientId")}
            if entry.get("principalId") and ids <= names:
                return Identity(owner, entry["principalId"])

    fix = "az ml compute update --identity-type UserAssigned --user-assigned-identities ID"
    message = f"{next(iter(owners))} has no identity {', '.join(ids)}"
    raise RefusedError(message, hint=fix)


def require(things: Things, who: Identity | None, scope: str, actions: Iterable[str]) -> str:
    """Return who may do all of this with a resource, by the roles there.

    Raise RefusedError for one who may not.
    """
    if who is None:
        raise NotCheckedError("it is not known whom the job acts as")

    granted, conditional = _permissions(things, who, scope)
    lacking = missing(granted, actions)
    if not lacking:
        return who.words
    if not missing(conditional, lacking):
        raise NotCheckedError(f"a role of {who.words} has a condition, which no call evaluates")

    role = rights_of("roles").get(lacking[-1], SCIENTIST)
    fix = f"az role assignment create --assignee {who.principal or 'YOU'}"
    raise RefusedError(
        f"no role there gives {who.words} {', '.join(lacking)}",
        hint=f"{fix} --role '{role}' --scope {scope}",
    )


def _permissions(
    things: Things, who: Identity, scope: str
) -> tuple[list[Resource], list[Resource]]:
    """Return what somebody is granted at a scope, inherited and by groups too.

    Grants of roles with a condition come second.
    """
    authorization = f"{scope}/providers/Microsoft.Authorization"
    if who is things.caller:
        return list(things.arm.listed(f"{authorization}/permissions", ROLES_VERSION)), []

    granted: list[Resource] = []
    conditional: list[Resource] = []
    path = f"{authorization}/roleAssignments"
    query = f"assignedTo('{who.principal}')"
    for assignment in things.arm.listed(path, ROLES_VERSION, filter=query):
        properties = assignment["properties"]
        # at this scope: the right to read roles here does not imply it further up
        name = properties["roleDefinitionId"].rpartition("/")[2]
        role = things.arm.get(f"{authorization}/roleDefinitions/{name}", ROLES_VERSION)
        permissions = conditional if properties.get("condition") else granted
        permissions += role.document["properties"]["permissions"]

    return granted, conditional
