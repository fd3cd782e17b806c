"""Deployments of the imitated Resource Manager: what-if, and the steps by which a template becomes
resources.

After "ARM template deployment what-if operation", "Deployments" in the REST reference, and
"Troubleshoot common Azure deployment errors" in Microsoft's documentation. A deployment goes on
whenever somebody looks at it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tests.fakes.azure.account import Account
from tests.fakes.azure.rbac import Attempt
from tests.fakes.azure.resource_manager.kinds import problem
from tests.fakes.azure.resource_manager.store import Store
from tests.fakes.azure.resource_manager.template import Planned, Template, invalid
from tests.fakes.azure.tokens import CLIENT, OBJECT_ID
from tests.fakes.messages import ServiceError

STEPS = 8
"""How many resources are done from one look at a deployment to the next."""


@dataclass(kw_only=True)
class Deployment:
    """One deployment and its steps."""

    id: str
    template: Template
    queue: list[Planned]
    given: Mapping[str, Any]
    state: str = "Accepted"
    operations: list[dict[str, Any]] = field(default_factory=list)
    outputs: dict[str, Any] = field(default_factory=dict)

    def document(self) -> dict[str, Any]:
        """As Resource Manager shows it: parameters with their values, those of defaults too."""
        declared = self.template.declared
        parameters = {
            name: {"type": declared[name]["type"].capitalize(), "value": value}
            for name, value in self.template.parameters.items()
        }
        properties: dict[str, Any] = {
            "provisioningState": self.state,
            "parameters": parameters,
            "mode": "Incremental",
        }
        if self.state == "Succeeded":
            properties["outputs"] = self.outputs
        if self.state == "Failed":
            failed = [
                each["properties"]["statusMessage"]["error"]
                for each in self.operations
                if _failed(each)
            ]
            properties["error"] = _failed_error(failed)
        name = self.id.rpartition("/")[2]
        return {
            "id": self.id,
            "name": name,
            "type": "Microsoft.Resources/deployments",
            "properties": properties,
        }


class Deployments:
    """All deployments of a group."""

    def __init__(self, store: Store, account: Account) -> None:
        self.store = store
        self.account = account
        self.known: dict[str, Deployment] = {}
        self.steps_at_once = STEPS

    def what_if(self, group: Mapping[str, Any], properties: Mapping[str, Any]) -> dict[str, Any]:
        """The answer of what-if: one change per resource. ServiceError where a deployment would be
        refused.
        """
        template, planned = self._checked(group, properties)
        changes = []
        for one in planned:
            found = self.store.get(one.id)
            body = template.body(one)
            kind = "Create" if found is None else "NoChange" if found.body == body else "Modify"
            before = found.body if found else None
            change: dict[str, Any] = {
                "resourceId": one.id,
                "changeType": kind,
                "before": before,
                "after": body,
            }
            if kind == "Modify":
                change["delta"] = [*_delta(before or {}, body, "")]
            changes.append(change)
        named = {one.id.lower() for one in planned}
        changes += [
            {"resourceId": each.id, "changeType": "Ignore", "before": each.body, "after": each.body}
            for each in self.store.below(group["id"])
            if each.id.lower() not in named and each.id.rpartition("/providers/")[0] == group["id"]
        ]
        return {"status": "Succeeded", "properties": {"changes": changes}}

    def begin(
        self, group: Mapping[str, Any], name: str, properties: Mapping[str, Any]
    ) -> Deployment:
        """Accept a deployment. ServiceError for one that cannot be deployed, or while one of that
        name goes on.
        """
        earlier = self.known.get(name.lower())
        if earlier is not None and earlier.state in ("Accepted", "Running"):
            message = (
                f"Unable to edit or replace deployment '{name}': previous deployment from"
                " '11/20/2026 10:00:00 AM' is still active. Please see https://aka.ms/arm-deploy"
                " for usage details."
            )
            raise ServiceError("DeploymentActive", message, 409)
        template, planned = self._checked(group, properties)
        id_ = f"{group['id']}/providers/Microsoft.Resources/deployments/{name}"
        made = Deployment(
            id=id_, template=template, queue=planned, given=properties.get("parameters") or {}
        )
        self.known[name.lower()] = made
        return made

    def look(self, name: str) -> Deployment | None:
        """A deployment, which has gone on since the last look."""
        found = self.known.get(name.lower())
        if found is not None and found.state in ("Accepted", "Running"):
            self._go_on(found)
        return found

    def _checked(
        self, group: Mapping[str, Any], properties: Mapping[str, Any]
    ) -> tuple[Template, list[Planned]]:
        if properties.get("mode") != "Incremental":
            raise invalid("this imitation knows the mode Incremental alone")
        template = Template(properties["template"], properties.get("parameters") or {}, group)
        template.reference = self._reference
        planned = template.planned()
        caller = group.get("caller", OBJECT_ID)
        problems = [self._problem(one, template.body(one), caller) for one in planned]
        details = [{"code": code, "message": message} for code, message in filter(None, problems)]
        if details:
            raise Refused(
                "InvalidTemplateDeployment",
                "The template deployment failed. See inner errors.",
                details,
            )
        return template, planned

    def _problem(
        self, one: Planned, body: Mapping[str, Any], caller: str
    ) -> tuple[str, str] | None:
        if not self.account.access.allows(
            caller, Attempt(action=f"{one.kind}/write", scope=one.id)
        ):
            message = (
                f"Authorization failed for template resource '{one.id.rpartition('/')[2]}' of type"
                f" '{one.kind}'. The client '{CLIENT}' with object id '{caller}' does not have"
                f" permission to perform action '{one.kind}/write' at scope '{one.id}'."
            )
            return "AuthorizationFailed", message
        return problem(one.kind, one.api_version, one.id.rpartition("/")[2], body)

    def _reference(self, id_: str, version: str) -> Any:
        """What `reference` tells of a resource; of one that is not there yet, the expression
        itself.
        """
        found = self.store.get(id_)
        if found is None:
            return {
                key: f"[reference('{id_}', '{version}').{key}]"
                for key in ("principalId", "clientId", "loginServer")
            }
        return {**(found.body.get("properties") or {}), **found.answers}

    def _go_on(self, deployment: Deployment) -> None:
        deployment.state = "Running"
        now = deployment.queue[: self.steps_at_once]
        deployment.queue = deployment.queue[self.steps_at_once :]
        for one in now:
            try:
                self.store.put(one.id, one.kind, deployment.template.body(one))
                deployment.operations.append(_operation(one, "Succeeded"))
            except ServiceError as refused:
                deployment.operations.append(_operation(one, "Failed", refused))
                deployment.state = "Failed"
                deployment.queue = []
                return
        if not deployment.queue:
            deployment.state, deployment.outputs = "Succeeded", deployment.template.outputs()


class Refused(ServiceError):
    """An error with others inside."""

    def __init__(self, code: str, message: str, details: list[dict[str, Any]]) -> None:
        super().__init__(code, message, 400)
        self.details = details


def _operation(one: Planned, state: str, refused: ServiceError | None = None) -> dict[str, Any]:
    target = {"id": one.id, "resourceType": one.kind, "resourceName": one.id.rpartition("/")[2]}
    properties: dict[str, Any] = {
        "provisioningOperation": "Create",
        "provisioningState": state,
        "targetResource": target,
    }
    if refused is not None:
        error: dict[str, Any] = {"code": refused.code, "message": refused.message}
        if one.kind.startswith(
            "Microsoft.MachineLearningServices/"
        ):  # as in Azure/ResourceModules issue 3596
            message = (
                "The resource write operation failed to complete successfully, because it reached"
                " terminal"
            )
            outer = f"{message} provisioning state 'Failed'."
            error = {"code": "ResourceDeploymentFailure", "message": outer, "details": [error]}
        properties |= {
            "statusCode": "BadRequest",
            "statusMessage": {"status": "Failed", "error": error},
        }
    return {"id": f"{one.id}/operation", "operationId": one.id[-12:], "properties": properties}


def _failed(operation: Mapping[str, Any]) -> bool:
    return bool(operation["properties"]["provisioningState"] == "Failed")


def _failed_error(errors: list[dict[str, Any]]) -> dict[str, Any]:
    """As a deployment tells it: services' errors as JSON in the message of another."""
    message = (
        "At least one resource deployment operation failed. Please list deployment operations for"
        " details."
    )
    details = [
        {"code": "BadRequest", "message": json.dumps({"error": error}, indent=2)}
        for error in errors
    ]
    return {"code": "DeploymentFailed", "message": message, "details": details}


def _delta(before: Mapping[str, Any], after: Mapping[str, Any], path: str) -> list[dict[str, Any]]:
    found = []
    for key in sorted({*before, *after}):
        old = before.get(key)
        new = after.get(key)
        where = f"{path}{key}"
        if isinstance(old, dict) and isinstance(new, dict):
            found += _delta(old, new, f"{where}.")
        elif old != new:
            kind = "Create" if old is None else "Delete" if new is None else "Modify"
            found.append({"path": where, "propertyChangeType": kind, "before": old, "after": new})
    return found
