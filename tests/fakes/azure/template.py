"""Azure Resource Manager's reading of a template and its parameters: the resources, or an error.

After "Understand the structure and syntax of ARM templates", "Resource iteration", "Conditional
deployment", "Define the order for deploying resources", and "Error code: InvalidTemplate" in
Microsoft's documentation.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from tests.fakes.azure.expressions import ExpressionError, evaluate, resource_id
from tests.fakes.messages import ServiceError

PARTS = {"$schema", "contentVersion", "metadata", "parameters", "variables", "resources", "outputs"}
ELEMENTS = {
    *(
        "comments",
        "type",
        "apiVersion",
        "name",
        "location",
        "tags",
        "scope",
        "condition",
        "copy",
        "dependsOn",
    ),
    *("kind", "sku", "identity", "properties"),
}
"""Facts about a resource in a template."""
TYPES: Mapping[str, type | tuple[type, ...]] = {
    "string": str,
    "int": int,
    "bool": bool,
    "array": list,
    "object": dict,
}


@dataclass(frozen=True, slots=True)
class Planned:
    """One resource of a template, evaluated as far as is possible before the others are there."""

    id: str
    kind: str
    api_version: str
    body: dict[str, Any]
    """Not evaluated yet: properties may refer to other resources."""
    depends_on: frozenset[str]
    """Ids in lower case, of the resources that are deployed before it."""
    copy_index: int


def invalid(message: str) -> ServiceError:
    """Return the error for a template that is invalid in itself."""
    return ServiceError(
        "InvalidTemplate", f"Deployment template validation failed: '{message}'.", 400
    )


class Template:
    """A template with the values of its parameters, in one resource group."""

    def __init__(
        self, document: Mapping[str, Any], arguments: Mapping[str, Any], group: Mapping[str, Any]
    ) -> None:
        """`group`: id, name, location, subscription, tenant. ServiceError where ARM would refuse."""
        if unknown := set(document) - PARTS:
            raise invalid(f"Could not find member '{min(unknown)}' on object of type 'Template'")
        self._document = document
        self._group = group
        self.reference: Callable[..., Any] = lambda *_: _raise("reference() is not allowed here")
        self.parameters = self._read_parameters(arguments)

    @property
    def declared(self) -> Mapping[str, Any]:
        """Its parameters, as it declares them."""
        declarations: Mapping[str, Any] = self._document.get("parameters", {})
        return declarations

    def planned(self) -> list[Planned]:
        """The resources whose condition holds. ServiceError where any of them is wrong."""
        resources: list[Planned] = []
        loops: dict[str, list[str]] = {}
        skipped: set[str] = set()
        try:
            for body in self._document["resources"]:
                for one, holds in self._copies(body):
                    if name := body.get("copy", {}).get("name"):
                        loops.setdefault(name, []).append(one.id)
                    if holds:
                        resources.append(one)
                    else:
                        skipped.add(one.id.lower())
                if "copy" in body:
                    loops.setdefault(body["copy"]["name"], [])
        except ExpressionError as error:
            raise invalid(str(error)) from error
        return _resolved(resources, loops, skipped)

    def body(self, planned: Planned) -> dict[str, Any]:
        """Return the evaluated body that goes to the resource's provider."""
        sent = {
            key: value
            for key, value in planned.body.items()
            if key in ("location", "tags", "kind", "sku")
        }
        sent |= {
            key: planned.body[key] for key in ("identity", "properties") if key in planned.body
        }
        return dict(self._value(sent, planned.copy_index))

    def outputs(self) -> dict[str, Any]:
        """The outputs whose condition holds, as a deployment shows them."""
        output_values = {}
        for name, output in self._document.get("outputs", {}).items():
            if self._value(output.get("condition", True), None):
                output_values[name] = {
                    "type": output["type"].capitalize(),
                    "value": self._value(output["value"], None),
                }
        return output_values

    def _copies(self, body: Mapping[str, Any]) -> Iterator[tuple[Planned, bool]]:
        if unknown := set(body) - ELEMENTS:
            raise invalid(
                f"Could not find member '{min(unknown)}' on object of type 'TemplateResource'"
            )
        count = self._value(body["copy"]["count"], None) if "copy" in body else 1
        for index in range(count):
            copied = index if "copy" in body else None
            kind = body["type"]
            name = self._value(body["name"], copied)
            names = name.split("/")
            if len(names) != kind.count("/"):
                expected = (
                    "A nested resource type must have identical number of segments as its resource"
                    f" name: {kind}"
                )
                raise invalid(f"The template resource '{name}' is not valid. {expected}")
            scope = self._value(body["scope"], copied) if "scope" in body else self._group["id"]
            depends = frozenset(self._value(item, copied) for item in body.get("dependsOn", []))
            one = Planned(
                resource_id(scope, kind, *names),
                kind,
                body["apiVersion"],
                dict(body),
                depends,
                copied or 0,
            )
            yield one, bool(self._value(body.get("condition", True), copied))

    def _read_parameters(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        declared = self.declared
        if unknown := set(arguments) - set(declared):
            raise invalid(
                f"The template parameters '{', '.join(sorted(unknown))}' in the parameters file are"
                " not valid; they are not present in the original template and can therefore not"
                " be provided at deployment time. The only supported parameters for this template"
                f" are '{', '.join(declared)}'"
            )
        self.parameters = {}
        for name, declaration in declared.items():
            if name not in arguments and "defaultValue" not in declaration:
                raise invalid(f"The value for the template parameter '{name}' is not provided")
            default = declaration.get("defaultValue")
            utc_now = {
                "utcNow": lambda form: time.strftime(
                    form.replace("yyyy-MM-01", "%Y-%m-01"), time.gmtime()
                )
            }
            value = (
                arguments[name]["value"]
                if name in arguments
                else evaluate(default, {**self._scope(None), **utc_now})
            )
            _check(name, value, declaration)
            self.parameters[name] = value
        return self.parameters

    def _value(self, value: Any, index: int | None) -> Any:
        if isinstance(value, dict) and "copy" in value and isinstance(value["copy"], list):
            properties = {key: item for key, item in value.items() if key != "copy"}
            return self._value(properties, index) | {
                loop["name"]: self._repeated(loop, index) for loop in value["copy"]
            }
        if isinstance(value, dict):
            return {
                evaluate(key, self._scope(index)): self._value(item, index)
                for key, item in value.items()
            }
        if isinstance(value, list):
            return [self._value(item, index) for item in value]
        return evaluate(value, self._scope(index))

    def _repeated(self, loop: Mapping[str, Any], index: int | None) -> list[Any]:
        count = self._value(loop["count"], index)
        return [
            evaluate(loop["input"], self._scope(index, {loop["name"]: step}))
            for step in range(count)
        ]

    def _scope(
        self, index: int | None, loops: Mapping[str, int] | None = None
    ) -> Mapping[str, Callable[..., Any]]:
        group = self._group
        subscription = {"subscriptionId": group["subscription"], "tenantId": group["tenant"]}
        above = f"/subscriptions/{group['subscription']}"
        indices = {"": index, **(loops or {})}
        return {
            "parameters": lambda name: self.parameters[name],
            "variables": lambda name: self._value(self._document["variables"][name], index),
            "resourceGroup": lambda: {key: group[key] for key in ("id", "name", "location")},
            "subscription": lambda: {"id": above, **subscription},
            "environment": lambda: {"suffixes": {"storage": "core.windows.net"}},
            "resourceId": lambda *parts: resource_id(group["id"], *parts),
            "subscriptionResourceId": lambda *parts: resource_id(above, *parts),
            "reference": lambda *parts: self.reference(*parts),
            "copyIndex": lambda name="": (
                indices[name] if indices[name] is not None else _raise("copyIndex() here")
            ),
        }


def _check(name: str, value: Any, declaration: Mapping[str, Any]) -> None:
    """After "Parameters in ARM templates": type, allowed values, and what lengths and numbers are
    allowed.
    """
    kind = TYPES[declaration["type"].lower()]
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise invalid(
            f"The provided value for the template parameter '{name}' is not valid: expected"
            f" {declaration['type']}"
        )
    allowed = declaration.get("allowedValues")
    if allowed and value not in allowed:
        raise invalid(
            f"The provided value '{value}' for the template parameter '{name}' is not valid. The"
            f" value is not part of the allowed value(s): '{','.join(map(str, allowed))}'"
        )
    size = len(value) if isinstance(value, (str, list)) else value if isinstance(value, int) else 0
    least, most = (
        declaration.get(f"{end}{'Value' if kind is int else 'Length'}") for end in ("min", "max")
    )
    if (least is not None and size < least) or (most is not None and size > most):
        raise invalid(
            f"The provided value for the template parameter '{name}' is not valid. Length or value"
            f" is {size}"
        )


def _resolved(
    planned: list[Planned], loops: Mapping[str, list[str]], skipped: set[str]
) -> list[Planned]:
    """Return the resources so that each comes after its dependencies."""
    ids = {one.id.lower() for one in planned}
    if len(ids) < len(planned):
        raise invalid("The resource is defined multiple times in a template")
    needs: dict[str, set[str]] = {}
    for one in planned:
        dependencies = {
            dependency for name in one.depends_on for dependency in loops.get(name, [name])
        }
        needs[one.id] = {
            dependency.lower() for dependency in dependencies
        } - skipped  # one that is not deployed is not waited for
        if missing := needs[one.id] - ids:
            raise invalid(f"The resource '{min(missing)}' is not defined in the template")
    ordered: list[Planned] = []
    while len(ordered) < len(planned):
        planned_ids = {one.id.lower() for one in ordered}
        ready = [
            one
            for one in planned
            if one.id.lower() not in planned_ids and needs[one.id] <= planned_ids
        ]
        if not ready:
            raise invalid("Circular dependency detected")
        ordered += [replace(one, depends_on=frozenset(needs[one.id])) for one in ready]
    return ordered


def _raise(message: str) -> Any:
    raise ExpressionError(message)
