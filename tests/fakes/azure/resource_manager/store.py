"""The resources that there are in an imitated subscription, and what each provider refuses when one
comes or goes.

Each rule says where it is written: in Microsoft's documentation, or in an issue of its tools that
quotes the service.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from tests.fakes.azure.rbac import Assignment, Role, role_of
from tests.fakes.azure.resource_manager import role_rules
from tests.fakes.azure.resource_manager.kinds import KINDS, changed_for_good
from tests.fakes.messages import ServiceError

WORKSPACES = "Microsoft.MachineLearningServices/workspaces"
COMPUTES = f"{WORKSPACES}/computes"
ASSIGNMENTS = role_rules.ASSIGNMENTS
DEFINITIONS = role_rules.DEFINITIONS
IDENTITIES = role_rules.IDENTITIES
VAULTS = "Microsoft.KeyVault/vaults"
BUDGETS = "Microsoft.Consumption/budgets"
PURPOSES = ("Microsoft.Storage/storageAccounts", VAULTS, "Microsoft.ContainerRegistry/registries")
"""What the identity of a workspace must have a role on, besides Application Insights."""

TAKEN = {
    "Microsoft.Storage/storageAccounts": (
        "StorageAccountAlreadyTaken",
        "The storage account named {} is already taken.",
    ),
    VAULTS: ("VaultAlreadyExists", "The vault name '{}' is already in use."),
    "Microsoft.ContainerRegistry/registries": (
        "AlreadyInUse",
        "The registry DNS name {}.azurecr.io is already in use.",
    ),
}
"""After "Error: resource name is taken" (storage) and the services' pages on names that are part of
a host name.
"""


@dataclass(kw_only=True)
class Resource:
    """One resource: what was sent, and what the service added."""

    id: str
    kind: str
    body: dict[str, Any]
    answers: dict[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The last part of its id."""
        return self.id.rpartition("/")[2]

    def document(self) -> dict[str, Any]:
        """As Resource Manager shows it."""
        properties = {
            **(self.body.get("properties") or {}),
            **self.answers,
            "provisioningState": "Succeeded",
        }
        return {
            "id": self.id,
            "name": self.name,
            "type": self.kind,
            **self.body,
            "properties": properties,
        }


class Store:
    """All resources, by their id in lower case, and those deleted that can come back."""

    def __init__(self, people: set[str], vm_sizes: Mapping[str, Any]) -> None:
        self.resources: dict[str, Resource] = {}
        self.deleted_workspaces: set[str] = set()
        self.deleted_vaults: dict[str, Resource] = {}
        self.people = people
        self.vm_sizes = vm_sizes
        self.taken: set[str] = set()
        """Names that others have already, of kinds whose names are part of a host name."""

    def clear(self) -> None:
        """Forget everything."""
        for each in (self.resources, self.deleted_workspaces, self.deleted_vaults, self.taken):
            each.clear()

    def get(self, id_: str) -> Resource | None:
        """A resource by its id, in whatever case."""
        return self.resources.get(id_.lower())

    def below(self, scope: str, kind: str = "") -> Iterator[Resource]:
        """Resources of a scope, and of what is in it."""
        for each in list(self.resources.values()):
            if each.id.lower().startswith(f"{scope.lower()}/") and kind in ("", each.kind):
                yield each

    def put(self, id_: str, kind: str, body: dict[str, Any]) -> Resource:
        """Create or change a resource. ServiceError where its provider refuses."""
        before = self.get(id_)
        self._check_references(id_, body)
        if before is not None:
            old = before.body.get("properties") or {}
            new = body.get("properties") or {}
            if path := changed_for_good(kind, old, new):
                raise _fixed(kind, path)
        elif kind != ASSIGNMENTS:
            self._check_name(id_, kind, body)
        self._check_kind(id_, kind, body)
        name = id_.rpartition("/")[2]
        unique = str(uuid.uuid4())
        answers = before.answers if before else {
            key: text.format(name=name, uuid=unique) if "client" not in text else str(uuid.uuid4())
            for key, text in KINDS[kind].answers.items()
        }  # fmt: skip
        self.resources[id_.lower()] = Resource(id=id_, kind=kind, body=body, answers=answers)
        return self.resources[id_.lower()]

    def delete(self, id_: str, query: Mapping[str, str]) -> bool:
        """Delete a resource and what is part of it; False where there is none. ServiceError where
        it is in use.
        """
        found = self.get(id_)
        if found is None:
            return False
        self._check_unused(found)
        for each in list(self.below(found.id)):
            del self.resources[each.id.lower()]
        del self.resources[id_.lower()]
        if found.kind == WORKSPACES and query.get("forceToPurge") != "true":
            self.deleted_workspaces.add(
                id_.lower()
            )  # "Recover workspace data while soft deleted": the default
        if found.kind == VAULTS:
            self.deleted_vaults[found.name] = (
                found  # "Azure Key Vault soft-delete overview": always
            )
        return True

    def assignments(self) -> list[Assignment]:
        """Who has which role where."""
        return [
            Assignment(
                principal=each.body["properties"]["principalId"],
                role=each.body["properties"]["roleDefinitionId"].rpartition("/")[2],
                scope=each.id.rpartition("/providers/Microsoft.Authorization/")[0],
            )
            for each in self.resources.values()
            if each.kind == ASSIGNMENTS
        ]

    def roles(self) -> dict[str, Role]:
        """The roles of this subscription, by the last part of their ids."""
        return {
            each.name: role_of(
                each.body["properties"]["roleName"], each.body["properties"]["permissions"]
            )
            for each in self.resources.values()
            if each.kind == DEFINITIONS
        }

    def identity_of(self, resource: Resource) -> str:
        """The object id of the first identity that a resource has; empty for none that exists."""
        ids = (resource.body.get("identity") or {}).get("userAssignedIdentities") or {}
        found = [self.get(each) for each in ids]
        return next((each.answers["principalId"] for each in found if each), "")

    def has_role(self, principal: str, scope: str) -> bool:
        """Whether a principal has any role right on a resource."""
        return any(
            each.body["properties"]["principalId"] == principal
            for each in self.below(f"{scope}/providers/Microsoft.Authorization", ASSIGNMENTS)
        )

    def _check_references(self, id_: str, body: Mapping[str, Any]) -> None:
        """After "Error: LinkedInvalidPropertyId / ResourceNotFound": what a resource refers to must
        be there.
        """
        scope = id_.rpartition("/providers/Microsoft.Authorization/")[0]
        for text in [*_ids(body), *([scope] if "/providers/" in scope else [])]:
            if self.get(text.partition("/subnets/")[0]) is None:
                message = (
                    f"The resource referred to, '{text}', was not found. Referred to by '{id_}'."
                )
                raise ServiceError("ResourceNotFound", message, 404)

    def _check_name(self, id_: str, kind: str, body: Mapping[str, Any]) -> None:
        name = id_.rpartition("/")[2]
        if KINDS[kind].is_global and name.lower() in self.taken:
            code, message = TAKEN[kind]
            raise ServiceError(code, message.format(name), 409)
        if (
            kind == WORKSPACES and id_.lower() in self.deleted_workspaces
        ):  # Azure/ResourceModules issue 3596
            message = (
                "Soft-deleted workspace exists. Please purge or recover it."
                " https://aka.ms/wsoftdelete"
            )
            raise ServiceError("BadRequest", message, 400)
        if kind == VAULTS:
            self._check_vault(name, body["properties"].get("createMode", "default"))

    def _check_vault(self, name: str, mode: str) -> None:
        """After "Azure Key Vault recovery management": a deleted vault keeps its name until it is
        purged.
        """
        if mode == "default" and name in self.deleted_vaults:
            message = (
                "A vault with the same name already exists in deleted state. You need to either"
                " recover or purge existing key vault. Follow this link"
                " https://go.microsoft.com/fwlink/?linkid=2149745 for more information."
            )
            raise ServiceError("ConflictError", message, 409)
        if mode == "recover" and self.deleted_vaults.pop(name, None) is None:
            raise ServiceError(
                "VaultNotFound", f"No deleted vault with the name {name} was found.", 404
            )

    def _check_kind(self, id_: str, kind: str, body: Mapping[str, Any]) -> None:
        properties = body.get("properties") or {}
        if kind == ASSIGNMENTS:
            role_rules.check_assignment(self, id_, properties)
        elif kind == DEFINITIONS:
            role_rules.check_definition(self, id_, properties)
        elif kind == COMPUTES and properties["properties"]["vmSize"] not in self.vm_sizes:
            size = properties["properties"]["vmSize"]
            raise ServiceError(
                "BadRequest", f"VM size {size} is not available in region {body['location']}.", 400
            )
        elif kind == WORKSPACES:
            self._check_workspace(properties)

    def _check_workspace(self, properties: Mapping[str, Any]) -> None:
        """After "Set up authentication between Azure Machine Learning and other services",
        user-assigned identity.
        """
        identity = self.get(properties.get("primaryUserAssignedIdentity") or "")
        if identity is None:
            raise ServiceError(
                "BadRequest", "A user-assigned identity needs primaryUserAssignedIdentity.", 400
            )
        for name in ("storageAccount", "keyVault", "containerRegistry", "applicationInsights"):
            if not self.has_role(identity.answers["principalId"], properties[name]):
                message = (
                    f"The managed identity {identity.name} is not authorized on {properties[name]}."
                )
                raise ServiceError("FailedIdentityOperation", message, 400)

    def _check_unused(self, found: Resource) -> None:
        """After the pages on deleting virtual networks, NAT gateways, public addresses and DNS
        zones.
        """
        role_rules.check_unused(self, found)
        if not found.kind.startswith("Microsoft.Network/"):
            return
        inside = {each.id.lower() for each in self.below(found.id)}
        for each in self.resources.values():
            if each.id.lower() not in inside and any(
                text.lower().partition("/subnets/")[0] == found.id.lower()
                for text in _ids(each.body)
            ):
                message = f"{found.kind} {found.name} is in use by {each.id} and cannot be deleted."
                raise ServiceError("InUseCannotBeDeleted", message, 400)
        if found.kind.endswith("/privateDnsZones") and inside:
            message = f"Can not delete resource before nested resources are deleted: {found.name}."
            raise ServiceError("CannotDeleteResource", message, 409)


def _fixed(kind: str, path: str) -> ServiceError:
    if kind == ASSIGNMENTS:  # Azure/Azure-Landing-Zones issue 2057
        message = (
            "Tenant ID, application ID, principal ID, and scope are not allowed to be updated."
        )
        return ServiceError("RoleAssignmentUpdateNotPermitted", message, 400)
    if kind == BUDGETS:  # Azure/CanadaPubSecALZ issue 317
        return ServiceError(
            "400",
            "Start date of budgets cannot be updated. Please delete and create a new budget.",
            400,
        )
    return ServiceError(
        "PropertyChangeNotAllowed", f"Changing property '{path}' is not allowed.", 409
    )


def _ids(value: Any) -> Iterator[str]:
    """The ids of resources of a group in a value, names of properties too."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield from _ids(key)
            yield from _ids(item)
    elif isinstance(value, list):
        for item in value:
            yield from _ids(item)
    elif isinstance(value, str) and re.match(
        "/subscriptions/[^/]+/resourceGroups/[^/]+/providers/", value
    ):
        yield value
