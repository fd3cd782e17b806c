"""The language inside the brackets of a template: its grammar, and what its functions answer.

After "Template syntax and expressions" and "ARM template functions" in Microsoft's documentation. A
function that is not here is refused, so that a template cannot come to need one that nothing
checks.
"""

from __future__ import annotations

import hashlib
import ipaddress
import re
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any

_TOKEN = re.compile(
    r"\s*(?:(?P<text>'(?:[^']|'')*')|(?P<number>-?\d+)|(?P<name>[A-Za-z]\w*)|(?P<sign>[()\[\].,]))"
)


class ExpressionError(Exception):
    """A mistake in an expression."""


@dataclass(frozen=True, slots=True)
class Call:
    """A function and its arguments, or a member of what another expression gives (`.` and `[]`)."""

    name: str
    arguments: tuple[Any, ...]


def is_expression(value: object) -> bool:
    """Return whether a text of a template is evaluated; two leading brackets mean a literal."""
    return (
        isinstance(value, str)
        and value.startswith("[")
        and value.endswith("]")
        and not value.startswith("[[")
    )


def parse(text: str) -> Any:
    """The tree of an expression in its brackets: calls, texts and numbers. ExpressionError where it
    is none.
    """
    tokens = []
    inside = text[1:-1]
    position = 0
    while inside[position:].strip():
        match = _TOKEN.match(inside, position)
        if match is None:
            raise ExpressionError(f"unexpected {inside[position:][:20]!r} in {text}")
        tokens.append((str(match.lastgroup), match[str(match.lastgroup)]))
        position = match.end()
    reader = _Reader(tokens, text)
    tree = reader.expression()
    reader.end()
    return tree


def calls(tree: Any) -> Iterator[Call]:
    """Every call in a tree, the outermost first."""
    if isinstance(tree, Call):
        yield tree
        for argument in tree.arguments:
            yield from calls(argument)


class _Reader:
    def __init__(self, tokens: list[tuple[str, str]], text: str) -> None:
        self._tokens = tokens
        self._text = text

    def expression(self) -> Any:
        kind, word = self._next()
        if kind == "text":
            return word[1:-1].replace("''", "'")
        if kind == "number":
            return int(word)
        if kind != "name":
            raise ExpressionError(f"unexpected {word!r} in {self._text}")
        tree: Any = Call(word, self._arguments())
        while self._tokens and self._tokens[0][1] in (".", "["):
            _, sign = self._next()
            if sign == ".":
                tree = Call(".", (tree, self._next()[1]))
            else:
                tree = Call(".", (tree, self.expression()))
                self._expect("]")
        return tree

    def end(self) -> None:
        if self._tokens:
            raise ExpressionError(f"{self._tokens[0][1]!r} is too much in {self._text}")

    def _arguments(self) -> tuple[Any, ...]:
        self._expect("(")
        arguments: list[Any] = []
        while self._tokens and self._tokens[0][1] != ")":
            arguments.append(self.expression())
            if self._tokens and self._tokens[0][1] == ",":
                self._next()
        self._expect(")")
        return tuple(arguments)

    def _next(self) -> tuple[str, str]:
        if not self._tokens:
            raise ExpressionError(f"{self._text} ends too early")
        return self._tokens.pop(0)

    def _expect(self, sign: str) -> None:
        if self._next()[1] != sign:
            raise ExpressionError(f"{sign!r} is missing in {self._text}")


Scope = Mapping[str, Callable[..., Any]]
"""Functions that depend on where a template is deployed, or on where in it an expression is:
parameters, reference …
"""


def evaluate(value: Any, scope: Scope) -> Any:
    """A value of a template with all expressions in it evaluated, names of properties too."""
    if isinstance(value, dict):
        return {str(evaluate(key, scope)): evaluate(item, scope) for key, item in value.items()}
    if isinstance(value, list):
        return [evaluate(item, scope) for item in value]
    if isinstance(value, str) and value.startswith("[["):
        return value[1:]
    return _evaluate(parse(value), scope) if is_expression(value) else value


def _evaluate(tree: Any, scope: Scope) -> Any:
    if not isinstance(tree, Call):
        return tree
    name = tree.name
    if name == "if":  # evaluates only the branch that it takes
        condition, yes, no = tree.arguments
        return _evaluate(yes if _evaluate(condition, scope) else no, scope)
    arguments = [_evaluate(argument, scope) for argument in tree.arguments]
    function = scope.get(name) or FUNCTIONS.get(name)
    if function is None:
        raise ExpressionError(f"The template function '{name}' is not valid.")
    try:
        return function(*arguments)
    except (KeyError, IndexError, TypeError) as error:
        raise ExpressionError(
            f"The template function '{name}' cannot be evaluated: {error!r}"
        ) from error


def unique_string(*parts: str) -> str:
    """13 letters and digits that are the same for the same texts."""
    digest = hashlib.sha256("/".join(parts).encode()).digest()
    return "".join("abcdefghijklmnopqrstuvwxyz234567"[byte % 32] for byte in digest[:13])


def resource_id(scope: str, kind: str, *names: str) -> str:
    """The id of a resource below a scope: types and names alternate."""
    provider, *types = kind.split("/")
    if len(types) != len(names):
        raise ExpressionError(
            f"Unable to evaluate template language function 'resourceId': {kind} has other names."
        )
    pairs = "/".join(f"{one}/{name}" for one, name in zip(types, names, strict=True))
    return f"{scope}/providers/{provider}/{pairs}"


def _member(value: Any, key: Any) -> Any:
    if isinstance(value, dict):
        # Names of properties are the same in whatever case they are written.
        return next(item for name, item in value.items() if name.lower() == str(key).lower())
    return value[key]


def _join(*values: Any) -> Any:
    return [*chain(*values)] if isinstance(values[0], list) else "".join(map(str, values))


def _subnet(prefix: str, bits: int, index: int) -> str:
    network = ipaddress.ip_network(prefix)
    return f"{ipaddress.ip_address(int(network.network_address) + index * 2 ** (32 - bits))}/{bits}"


FUNCTIONS: Scope = {
    ".": _member,
    "and": lambda *values: all(values),
    "cidrSubnet": _subnet,
    "concat": _join,
    "createObject": lambda *pairs: dict(zip(pairs[::2], pairs[1::2], strict=True)),
    "div": lambda one, second: one // second,
    "empty": lambda value: not value,
    "equals": lambda one, second: one == second,
    "extensionResourceId": resource_id,
    "greater": lambda one, second: one > second,
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
    "uniqueString": unique_string,
}
"""Those whose answer depends on their arguments alone."""
