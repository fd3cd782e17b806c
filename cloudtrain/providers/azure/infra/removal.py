"""What `infra down` deletes of an Azure deployment, in which order, what stays, and what to know
about both.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from cloudtrain.infrastructure.changes import Change
from cloudtrain.infrastructure.idle_costs import idle_cost
from cloudtrain.providers.azure.infra import kinds
from cloudtrain.providers.azure.infra.kinds import api_versions, name_of, type_of, words_of

if TYPE_CHECKING:
    from cloudtrain.providers.azure.infra.client import ResourceGroup

RECOVERY_DAYS = 14
"""How long a deleted workspace and a deleted key vault are kept; the template says so of the vault.
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Found:
    """A resource of the deployment that exists."""

    id: str
    tier: str = ""
    state: str = ""
    shown: str = ""
    """What it is called, where its name says nothing."""

    @property
    def type(self) -> str:
        """Its type: `Microsoft.KeyVault/vaults`."""
        return type_of(self.id)


def existing(group: ResourceGroup, name: str) -> list[Found]:
    """All there is of a deployment: what bears its tag, the clusters of its workspace, its budget."""
    query = {
        "$filter": f"tagName eq '{kinds.TAG}' and tagValue eq '{name}'",
        "$expand": "provisioningState",
    }
    found = [
        Found(
            id=each["id"],
            tier=(each.get("sku") or {}).get("name", ""),
            state=each.get("provisioningState", ""),
        )
        for each in group.list(f"{group.id}/resources", "2022-09-01", query)
    ]
    workspace = f"{group.id}/providers/{kinds.WORKSPACE}/{name}"
    known = {each.id.lower() for each in found}
    if workspace.lower() in known:
        clusters = group.list(f"{workspace}/computes", api_versions()[kinds.CLUSTER])
        found += [
            Found(id=each["id"], state=(each.get("properties") or {}).get("provisioningState", ""))
            for each in clusters
            if each["id"].lower() not in known
        ]
    budget = f"{group.id}/providers/{kinds.BUDGET}/{name}"
    if known and group.get(budget, api_versions()[kinds.BUDGET]):
        found.append(Found(id=budget))
    return sorted(found, key=lambda each: kinds.rank(each.type))


def role_assignments(group: ResourceGroup, name: str, identities: Sequence[Found]) -> list[Found]:
    """The roles of these identities on what is in the group, which would outlive them."""
    found = []
    for identity in identities:
        about = group.get(identity.id, api_versions()[kinds.IDENTITY]) or {}
        principal = (about.get("properties") or {}).get("principalId")
        collection = f"{group.id}/providers/{kinds.ROLE_ASSIGNMENT}"
        query = {"$filter": f"principalId eq '{principal}'"}
        for each in (
            group.list(collection, api_versions()[kinds.ROLE_ASSIGNMENT], query)
            if principal
            else ()
        ):
            if each["id"].lower().startswith(f"{group.id}/".lower()):
                role = name_of(str(each["properties"]["roleDefinitionId"]))
                shown = (
                    f"{kinds.ROLES.get(role, role)} of"
                    f" {name_of(identity.id).removeprefix(f'{name}-')}"
                )
                found.append(Found(id=each["id"], shown=shown))
    return found


def own_roles(group: ResourceGroup, name: str) -> list[Found]:
    """The role that the deployment has defined, and before it its assignments, without which it
    could not go.
    """
    collection = f"{group.id}/providers/{kinds.ROLE_DEFINITION}"
    version = api_versions()[kinds.ROLE_DEFINITION]
    defined = {}
    for each in group.list(collection, version, {"$filter": "type eq 'CustomRole'"}):
        scopes = [str(scope).lower() for scope in each["properties"].get("assignableScopes") or ()]
        shown = str(each["properties"].get("roleName"))
        if shown.startswith(f"{kinds.OWN_ROLE} of {name} ") and scopes == [group.id.lower()]:
            defined[name_of(each["id"])] = shown
    collection = f"{group.id}/providers/{kinds.ROLE_ASSIGNMENT}"
    found = [
        Found(id=each["id"], shown=f"{kinds.OWN_ROLE} of {each['properties']['principalId']}")
        for each in (
            group.list(collection, api_versions()[kinds.ROLE_ASSIGNMENT]) if defined else ()
        )
        if name_of(str(each["properties"]["roleDefinitionId"])) in defined
    ]
    definition = f"{group.id}/providers/{kinds.ROLE_DEFINITION}"
    return [
        *found,
        *(Found(id=f"{definition}/{key}", shown=shown) for key, shown in defined.items()),
    ]


def kept(found: Sequence[Found], name: str) -> dict[str, str]:
    """Id -> why it stays while data is not to be deleted."""
    reasons = {}
    for each in found:
        if each.type in kinds.HOLD_DATA:
            reasons[each.id] = "holds data; --delete-data deletes it"
        elif each.type in (kinds.INSIGHTS, kinds.LOGS) or (
            each.type == kinds.IDENTITY and name_of(each.id) == f"{name}-workspace"
        ):
            reasons[each.id] = (
                "the workspace can be recovered only with it; --delete-data deletes it"
            )
    return reasons


def in_order(found: Sequence[Found]) -> list[Found]:
    """Those that can be deleted, each after what uses it; what goes with another is left out."""
    return sorted(
        (each for each in found if each.type in kinds.DELETED_FIRST),
        key=lambda each: kinds.DELETED_FIRST.index(each.type),
    )


def removal(each: Found, reason: str) -> Change:
    """The change of one resource: deleted, or kept for a reason."""
    return Change(
        action="keep" if reason else "delete",
        resource=each.shown or name_of(each.id),
        kind=words_of(each.type),
        identity="" if each.shown else name_of(each.id),
        detail=reason,
        holds_data=each.type in kinds.HOLD_DATA,
        idle_cost=idle_cost("azure", each.type, each.tier),
    )


def notes(changes: Sequence[Change], group: str, *, delete_data: bool) -> list[str]:
    """What to know before saying yes: what can be recovered, what stays, and what that costs."""
    gone = {each.kind for each in changes if each.action == "delete"}
    found = []
    if words_of(kinds.WORKSPACE) in gone and not delete_data:
        found.append(
            f"the workspace with its list of jobs can be recovered for {RECOVERY_DAYS} days (portal"
            " > Azure Machine Learning > Recently deleted); as long its name is taken: recover it"
            " before infra up, or use another --name"
        )
    if words_of(kinds.WORKSPACE) in gone and delete_data:
        found.append("the workspace is deleted for good, and its list of jobs with it")
    if words_of(kinds.VAULT) in gone:
        found.append(
            f"Azure keeps the deleted key vault for {RECOVERY_DAYS} days, and nobody can purge it:"
            " infra up brings it back"
        )
    costs = [
        each
        for each in changes
        if each.action == "keep" and each.idle_cost and each.idle_cost.usd_per_month
    ]
    if costs:
        amount = sum(each.idle_cost.usd_per_month or 0 for each in costs if each.idle_cost)
        what = ", ".join(each.kind for each in costs)
        found.append(f"what stays costs {amount:.2f} USD a month ({what}), and what is stored")
    if words_of("Microsoft.Network/privateEndpoints") in gone and not delete_data:
        found.append(
            "storage and key vault stay closed to public networks: infra up opens the private one"
            " again, or: az storage account update --public-network-access Enabled"
        )
    if any(each.action == "keep" and each.holds_data for each in changes):
        found.append("who may submit keeps the roles on what stays, to fetch what is there")
    return [
        *found,
        f"the resource group {group} stays; it costs nothing: az group delete --name {group}",
    ]


def delete_query(each: Found, *, delete_data: bool) -> Mapping[str, Any]:
    """What a deletion says besides the id: for good, where Azure would keep it otherwise."""
    if not delete_data:
        return {}
    return {kinds.WORKSPACE: {"forceToPurge": "true"}, kinds.LOGS: {"force": "true"}}.get(
        each.type, {}
    )
