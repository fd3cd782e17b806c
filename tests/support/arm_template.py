"""Evaluate an ARM template: its resources and outputs, as Azure Resource Manager reads them.

After "Template syntax and expressions", "ARM template functions" and "Resource iteration" in
Microsoft's documentation. Functions that our template does not use are errors, so that the template
cannot come to need one that nothing checks. Networks and budgets are left out: they grant nothing.
"""

from __future__ import annotations

import hashlib
import re
import uuid
from collections.abc import Callable, Iterator, Mapping
from itertools import chain
from typing import Any, NamedTuple

NOT_EVALUATED = ("Microsoft.Network/", "Microsoft.Consumption/")

_TOKEN = re.compile(r"\s*('(?:[^']|'')*'|-?\d+|\w+|[()\[\].,])")


class Resource(NamedTuple):
    """A resource that a deployment creates."""

    id: str
    kind: str
    body: Mapping[str, Any]
    """Location, identity and properties."""


class Template:
    """A template with values of parameters, in one resource group."""

    def __init__(
        self,
        document: Mapping[str, Any],
        values: Mapping[str, Any],
        group: Mapping[str, str],
        reference: Callable[..., Any],
    ) -> None:
        """`group`: id, name, location, subscription, tenant. `reference`: see its function."""
        self._document = document
        self._values = values
        above = f"/subscriptions/{group['subscription']}"
        self._functions: Mapping[str, Callable[..., Any]] = {
            **FUNCTIONS,
            "parameters": self._parameter,
            "variables": lambda name: self._value(document["variables"][name]),
            "resourceGroup": lambda: group,
            "subscription": lambda: {
                "subscriptionId": group["subscription"],
                "tenantId": group["tenant"],
            },
            "resourceId": lambda *parts: resource_id(group["id"], *parts),
            "subscriptionResourceId": lambda *parts: resource_id(above, *parts),
            "reference": reference,
            "copyIndex": lambda: self._index,
        }
        self._group = group
        self._index = 0

    def resources(self) -> Iterator[Resource]:
        """Yield the resources whose condition holds."""
        for body in self._document["resources"]:
            if body["type"].startswith(NOT_EVALUATED) or not self._value(
                body.get("condition", True)
            ):
                continue
            count = self._value(body["copy"]["count"]) if "copy" in body else 1
            for self._index in range(count):
                scope = self._value(body["scope"]) if "scope" in body else self._group["id"]
                names = self._value(body["name"]).split("/")
                sent = {key: body[key] for key in ("identity", "properties") if key in body}
                yield Resource(
                    resource_id(scope, body["type"], *names), body["type"], self._value(sent)
                )

    def outputs(self) -> dict[str, Any]:
        """Return the outputs whose condition holds, as a deployment shows them."""
        return {
            name: {"type": output["type"], "value": self._value(output["value"])}
            for name, output in self._document["outputs"].items()
            if self._value(output.get("condition", True))
        }

    def _parameter(self, name: str) -> Any:
        declaration = self._document["parameters"][name]
        if name in self._values:
            return self._values[name]
        return self._value(declaration["defaultValue"])

    def _value(self, value: Any) -> Any:
        """Return a value with all expressions in it evaluated."""
        if isinstance(value, dict):
            return {self._value(key): self._value(item) for key, item in value.items()}
        if isinstance(value, list):
            return [self._value(item) for item in value]
        if isinstance(value, str) and value.startswith("[") and value.endswith("]"):
            tokens = _TOKEN.findall(value[1:-1])
            result = self._evaluate(_tree(tokens))
            if tokens:
                raise ValueError(f"{tokens[0]!r} is too much in {value}")
            return result
        return value

    def _evaluate(self, tree: Any) -> Any:
        if not isinstance(tree, tuple):
            return tree
        name, *arguments = tree
        if name == "if":  # evaluates only the branch that it takes
            condition, yes, no = arguments
            return self._evaluate(yes if self._evaluate(condition) else no)
        return self._functions[name](*map(self._evaluate, arguments))


def _tree(tokens: list[str]) -> Any:
    """Take an expression from the tokens: a text, a number, or a tuple of function and arguments."""
    word = tokens.pop(0)
    if word.startswith("'"):
        return word[1:-1].replace("''", "'")
    if word.lstrip("-").isdecimal():
        return int(word)
    if tokens.pop(0) != "(":
        raise ValueError(f"no bracket after {word}")
    arguments = []
    while tokens[0] != ")":
        arguments.append(_tree(tokens))
        if tokens[0] == ",":
            tokens.pop(0)
    tokens.pop(0)
    tree: Any = (word, *arguments)
    while tokens and tokens[0] in (".", "["):
        sign = tokens.pop(0)
        tree = ("member", tree, tokens.pop(0) if sign == "." else _tree(tokens))
        if sign == "[":
            tokens.pop(0)
    return tree


def resource_id(scope: str, kind: str, *names: str) -> str:
    """Return the id of a resource below a scope: types and names alternate."""
    provider, *types = kind.split("/")
    pairs = "/".join(f"{one}/{name}" for one, name in zip(types, names, strict=True))
    return f"{scope}/providers/{provider}/{pairs}"


def _unique_string(*parts: str) -> str:
    """Return 13 letters and digits that are the same for the same texts."""
    digest = hashlib.sha256("/".join(parts).encode()).digest()
    return "".join("abcdefghijklmnopqrstuvwxyz234567"[byte % 32] for byte in digest[:13])


def _concat(*values: Any) -> Any:
    return [*chain(*values)] if isinstance(values[0], list) else "".join(map(str, values))


FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    "member": lambda value, key: value[key],
    "and": lambda *values: all(values),
    "concat": _concat,
    "createObject": lambda *pairs: dict(zip(pairs[::2], pairs[1::2], strict=True)),
    "div": lambda one, second: one // second,
    "empty": lambda value: not value,
    "equals": lambda one, second: one == second,
    "extensionResourceId": resource_id,
    "guid": lambda *parts: str(uuid.uuid5(uuid.NAMESPACE_URL, "/".join(parts))),
    "length": len,
    "mod": lambda one, second: one % second,
    "mul": lambda one, second: one * second,
    "not": lambda value: not value,
    "null": lambda: None,
    "replace": lambda text, old, new: text.replace(old, new),
    "take": lambda value, count: value[:count],
    "toLower": str.lower,
    "true": lambda: True,
    "uniqueString": _unique_string,
}
"""Functions whose result depends on their arguments alone."""
