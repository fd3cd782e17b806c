"""The calls of Azure Resource Manager about a subscription that is empty at first: groups,
deployments, resources.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any
from uuid import uuid4

from tests.fakes.azure.account import Account, Cluster
from tests.fakes.azure.rbac import Assignment
from tests.fakes.azure.resource_manager.deployments import STEPS, Deployments, Refused
from tests.fakes.azure.resource_manager.kinds import KINDS
from tests.fakes.azure.resource_manager.store import (
    ASSIGNMENTS,
    COMPUTES,
    DEFINITIONS,
    VAULTS,
    WORKSPACES,
    Resource,
    Store,
)
from tests.fakes.azure.rights import AUTHORIZATION, assignments
from tests.fakes.azure.roles import BUILT_IN, OWNER
from tests.fakes.azure.tokens import OBJECT_ID
from tests.fakes.azure.wire import Place, json_response
from tests.fakes.messages import Response, ServiceError

SLOW = (
    COMPUTES,
    WORKSPACES,
    "Microsoft.Network/virtualNetworks",
    "Microsoft.Network/privateEndpoints",
)
"""Kinds whose deletion is answered with 202 and an address to look at, as the REST reference says
of them.
"""


class ResourceManager:
    """One subscription, in which nothing is at first but an owner. What roles do not grant is
    refused.
    """

    def __init__(self, account: Account) -> None:
        self.account = account
        self.people = {OBJECT_ID}
        """Object ids of the users, groups and applications of the tenant."""
        self.groups: dict[str, dict[str, Any]] = {}
        self.store = Store(self.people, account.vm_sizes)
        self.deployments = Deployments(self.store, account)
        self._above: list[Assignment] = []
        account.access.is_enforced = True
        self.appoint(OWNER)
        self._results: dict[str, dict[str, Any] | None] = {}
        self._caller = OBJECT_ID
        self._operations: dict[str, Callable[[Place, dict[str, Any]], Response]] = {
            "GetGroup": lambda place, _: json_response(200, self._group(place)),
            "PutGroup": self._put_group,
            "DeleteGroup": self._delete_group,
            "ListResources": self._list_resources,
            "WhatIf": self._what_if,
            "PutDeployment": self._put_deployment,
            "GetDeployment": lambda place, _: json_response(
                200, self._deployment(place, go_on=True).document()
            ),
            "DeleteDeployment": self._delete_deployment,
            "ListOperations": lambda place, _: json_response(
                200, {"value": self._deployment(place).operations}
            ),
            "ListRoleAssignments": self._list_roles,
            "ListRoleDefinitions": self._list_definitions,
            "ListDeletedVaults": self._list_vaults,
            "GetResult": self._result,
            "GetResource": self._get,
            "DeleteResource": self._delete,
        }

    def empty(self) -> None:
        """Make the subscription empty again, and whoever asks its owner."""
        self.groups.clear()
        self.deployments.known.clear()
        self.deployments.steps_at_once = STEPS
        self.store.clear()
        self.people.clear()
        self.people.add(OBJECT_ID)
        self.appoint(OWNER)

    def appoint(self, *roles: str) -> None:
        """Give the user these roles on the whole subscription, and no others there."""
        scope = f"/subscriptions/{self.account.subscription}"
        self._above = [Assignment(principal=OBJECT_ID, role=each, scope=scope) for each in roles]
        self._settle()

    def call(
        self, operation: str, place: Place, body: dict[str, Any], caller: str = OBJECT_ID
    ) -> Response:
        """One call; ServiceError is what it answers instead. `caller`: an object id, of somebody
        who may call.
        """
        if place.names["subscription"].lower() != self.account.subscription:
            message = f"The subscription '{place.names['subscription']}' could not be found."
            raise ServiceError("SubscriptionNotFound", message, 404)
        if "api-version" not in place.query:
            message = (
                "The api-version query parameter (?api-version=) is required for all requests."
            )
            raise ServiceError("MissingApiVersionParameter", message, 400)
        self._caller = caller
        answer = self._operations[operation](place, body)
        self._settle()
        return answer

    def require_workspace(self, names: Mapping[str, str]) -> None:
        """ServiceError where the workspace that a call of Azure ML is about does not exist."""
        id_ = f"{self.id_of(names['group'])}/providers/{WORKSPACES}/{names['workspace']}"
        if self.store.get(id_) is None:
            raise _not_found(f"{WORKSPACES}/{names['workspace']}", names["group"])

    def _settle(self) -> None:
        """What the other services of this imitation know of the workspace follows what is there."""
        account = self.account
        account.parts = {}
        for each in self.store.resources.values():
            if each.kind == WORKSPACES:
                account.workspace = each.name
                account.location = each.body["location"]
                account.resource_group = each.id.split("/")[4]
                account.parts = self._parts_of(each)
                properties = each.body["properties"]
                by_key = properties.get("systemDatastoresAuthMode") != "Identity"
                account.datastore_credentials = "AccountKey" if by_key else "None"
        storage = self.store.get(account.parts.get("storageAccount", ""))
        account.takes_keys = storage is None or storage.body["properties"].get(
            "allowSharedKeyAccess", True
        )
        account.access.assignments[:] = [*self._above, *self.store.assignments()]
        account.access.roles = {**BUILT_IN, **self.store.roles()}
        account.rights.resources = [each.id for each in self.store.resources.values()]
        clusters = [each for each in self.store.resources.values() if each.kind == COMPUTES]
        account.computes = {each.name: self._cluster(each) for each in clusters}

    def _parts_of(self, workspace: Resource) -> dict[str, str]:
        names = ("storageAccount", "keyVault", "containerRegistry")
        found = {name: workspace.body["properties"][name] for name in names}
        others = [
            each.id
            for each in self.store.resources.values()
            if each.kind == VAULTS and each.id.lower() != found["keyVault"].lower()
        ]
        vault = others[0] if others else found["keyVault"]
        return {**found, "jobsVault": vault, "identity": self.store.identity_of(workspace)}

    def _cluster(self, found: Resource) -> Cluster:
        about = found.body["properties"]["properties"]
        return Cluster(
            vm_size=about["vmSize"],
            max_nodes=about["scaleSettings"]["maxNodeCount"],
            low_priority=about["vmPriority"] == "LowPriority",
            identity=self.store.identity_of(found),
        )

    def id_of(self, group: str) -> str:
        """The id of a group."""
        return f"/subscriptions/{self.account.subscription}/resourceGroups/{group}"

    def _group(self, place: Place) -> dict[str, Any]:
        name = place.names["group"]
        if name.lower() not in self.groups:
            raise ServiceError(
                "ResourceGroupNotFound", f"Resource group '{name}' could not be found.", 404
            )
        return self.groups[name.lower()]

    def _scope(self, place: Place) -> dict[str, Any]:
        account = self.account
        known = {
            "subscription": account.subscription,
            "tenant": account.tenant,
            "caller": self._caller,
        }
        return {**self._group(place), **known}

    def _put_group(self, place: Place, body: dict[str, Any]) -> Response:
        name = place.names["group"]
        if not body.get("location"):
            raise ServiceError(
                "LocationRequired", "The location property is required for this definition.", 400
            )
        made = {
            "id": self.id_of(name),
            "name": name,
            "type": "Microsoft.Resources/resourceGroups",
            **body,
        }
        self.groups[name.lower()] = {**made, "properties": {"provisioningState": "Succeeded"}}
        return json_response(201, self.groups[name.lower()])

    def _delete_group(self, place: Place, _: dict[str, Any]) -> Response:
        group = self._group(place)
        for each in list(self.store.below(group["id"])):
            if self.store.get(each.id):
                self.store.delete(each.id, {})
        del self.groups[group["name"].lower()]
        self.deployments.known.clear()
        return self._later({})

    def _list_resources(self, place: Place, _: dict[str, Any]) -> Response:
        """Top-level resources and clusters alone, as those that have a location; filtered by a tag."""
        group = self._group(place)
        wanted = re.fullmatch(
            r"tagName eq '([^']+)' and tagValue eq '([^']+)'", place.query.get("$filter", "")
        )
        if "$filter" in place.query and not wanted:
            raise ServiceError(
                "InvalidFilterInQueryString", f"Invalid $filter '{place.query['$filter']}'.", 400
            )
        found = [each for each in self.store.below(group["id"]) if KINDS[each.kind].is_located]
        if wanted:
            found = [
                each for each in found if (each.body.get("tags") or {}).get(wanted[1]) == wanted[2]
            ]
        told = [
            {
                "id": each.id,
                "type": each.kind,
                "name": each.name,
                **each.body,
                "provisioningState": "Succeeded",
            }
            for each in found
        ]
        return json_response(200, {"value": told})

    def _what_if(self, place: Place, body: dict[str, Any]) -> Response:
        return self._later(self.deployments.what_if(self._scope(place), body["properties"]))

    def _put_deployment(self, place: Place, body: dict[str, Any]) -> Response:
        made = self.deployments.begin(self._scope(place), place.names["name"], body["properties"])
        return json_response(201, made.document())

    def _deployment(self, place: Place, *, go_on: bool = False) -> Any:
        self._group(place)
        name = place.names["name"]
        found = self.deployments.look(name) if go_on else self.deployments.known.get(name.lower())
        if found is None:
            raise ServiceError(
                "DeploymentNotFound", f"Deployment '{name}' could not be found.", 404
            )
        return found

    def _delete_deployment(self, place: Place, _: dict[str, Any]) -> Response:
        self._deployment(place)
        del self.deployments.known[place.names["name"].lower()]
        return self._later(None)

    def _list_roles(self, place: Place, _: dict[str, Any]) -> Response:
        """After "List role assignments - REST": `principalId eq` finds those at and below the
        scope, too.

        `assignedTo` finds those that hold at the scope, and without a filter all at and below it
        are told.
        """
        asked = place.query.get("$filter", "")
        scope = place.path.rpartition(AUTHORIZATION)[0]
        self._group(place)
        if asked.startswith("assignedTo"):
            return json_response(
                200, {"value": assignments(self.account.real(scope), asked, self.account.access)}
            )
        wanted = re.fullmatch(r"(?:principalId eq '(?P<id>[^']+)')?", asked)
        if wanted is None:
            raise ServiceError("UnsupportedQuery", f"The filter '{asked}' is not supported.", 400)
        found = [each.document() for each in self.store.below(scope, ASSIGNMENTS)]
        told = [each for each in found if wanted["id"] in (None, each["properties"]["principalId"])]
        return json_response(200, {"value": told})

    def _list_definitions(self, place: Place, _: dict[str, Any]) -> Response:
        """After "List Azure role definitions", REST API: the filter for those that somebody has
        made.
        """
        group = self._group(place)
        asked = place.query.get("$filter", "")
        if asked != "type eq 'CustomRole'":
            raise ServiceError("UnsupportedQuery", f"The filter '{asked}' is not supported.", 400)
        return json_response(
            200, {"value": [each.document() for each in self.store.below(group["id"], DEFINITIONS)]}
        )

    def _list_vaults(self, _: Place, __: dict[str, Any]) -> Response:
        told = [
            {
                "name": each.name,
                "properties": {"vaultId": each.id, "tags": each.body.get("tags", {})},
            }
            for each in self.store.deleted_vaults.values()
        ]
        return json_response(200, {"value": told})

    def _get(self, place: Place, _: dict[str, Any]) -> Response:
        found = self.store.get(place.path)
        if found is None:
            raise _not_found(place.path.rpartition("/providers/")[2], place.names["group"])
        self._check_version(found.kind, place)
        return json_response(200, found.document())

    def _delete(self, place: Place, _: dict[str, Any]) -> Response:
        found = self.store.get(place.path)
        if found is None:
            return json_response(204)
        self._check_version(found.kind, place)
        self.store.delete(found.id, place.query)
        return self._later(None) if found.kind in SLOW else json_response(200)

    def _later(self, result: dict[str, Any] | None) -> Response:
        """202, and where the result will be: the first look there finds it still going on."""
        name = uuid4().hex
        self._results[name] = result
        address = f"/subscriptions/{self.account.subscription}/operationresults/{name}?api-version=2022-09-01"
        return json_response(
            202, Location=f"{self.account.url}{address}&first=yes", Retry_After="0"
        )

    def _result(self, place: Place, _: dict[str, Any]) -> Response:
        name = place.names["name"]
        if place.query.get("first"):
            address = place.path + "?api-version=2022-09-01"
            return json_response(202, Location=f"{self.account.url}{address}", Retry_After="0")
        result = self._results[name]
        return json_response(204) if result is None else json_response(200, result)

    def _check_version(self, kind: str, place: Place) -> None:
        if place.query["api-version"] != KINDS[kind].version:
            message = (
                "No registered resource provider found for API version"
                f" '{place.query['api-version']}' of {kind}."
            )
            raise ServiceError("NoRegisteredProviderFound", message, 400)


def refusal(refused: ServiceError) -> Response:
    """An error as Resource Manager tells it, with those inside."""
    error: dict[str, Any] = {"code": refused.code, "message": refused.message}
    if isinstance(refused, Refused):
        error["details"] = refused.details
    return json_response(refused.status, {"error": error})


def _not_found(name: str, group: str) -> ServiceError:
    message = (
        f"The Resource '{name}' under resource group '{group}' was not found. For more details"
        " please go to https://aka.ms/ARMResourceNotFoundFix"
    )
    return ServiceError("ResourceNotFound", message, 404)
