"""Check a document by a model of its shapes, in the form of botocore's service models. Pure."""

from __future__ import annotations

import math
import re
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cache, cached_property
from typing import Any

from cloudtrain.errors import Issue, Keys, did_you_mean, nearest, warning

SHOWN = 40
"""Maximum characters of a value in messages, since a variable may be a secret."""
FEW = 6
"""An enum with at most this many values is listed in full."""

_EXPECTED = {
    "structure": "a structure",
    "list": "a list",
    "map": "a map",
    "string": "text",
    "boolean": "true or false",
    "integer": "a whole number",
    "long": "a whole number",
    "float": "a number",
}

_BITS = {"integer": 31, "long": 63}
"""Bits of a whole number besides its sign."""


class TableShape:
    """A shape of a model as JSON, with the attributes of botocore's own shapes.

    A type `union` is one of its members; an enum with `anyCase` ignores case.
    """

    def __init__(self, name: str, traits: Mapping[str, Any], shapes: Mapping[str, Any]) -> None:
        self.name = name
        self.type_name = traits["type"]
        self.metadata = traits
        self._shapes = shapes

    @classmethod
    def named(cls, name: str, shapes: Mapping[str, Any]) -> TableShape:
        """Return a shape of a table."""
        return cls(name, shapes[name], shapes)

    @cached_property
    def members(self) -> dict[str, TableShape]:
        """Shapes of a structure's members."""
        references = self.metadata.get("members", {})
        return {name: self._of(reference) for name, reference in references.items()}

    @property
    def member(self) -> TableShape:
        """Shape of a list's items."""
        return self._of(self.metadata["member"])

    @property
    def key(self) -> TableShape:
        """Shape of a map's keys."""
        return self._of(self.metadata["key"])

    @property
    def value(self) -> TableShape:
        """Shape of a map's values."""
        return self._of(self.metadata["value"])

    def _of(self, reference: Mapping[str, Any]) -> TableShape:
        name = reference["shape"]
        traits = dict(self._shapes[name])
        traits.update(reference)
        return TableShape(name, traits, self._shapes)


def violations(shape: Any, value: Any) -> list[Issue]:
    """Return all violations of a shape, such as an operation's `input_shape`; empty if valid.

    The path of an issue leads to the wrong member, map key or list item. A violation of an enum, a
    pattern or a maximum is a warning. Types that no training job has are not checked.
    `shape`: a shape of botocore, or any object with the same attributes.
    """
    return list(_walk(shape, value, ()))


def _walk(shape: Any, value: Any, path: Keys) -> Iterator[Issue]:
    if not _has_type(shape.type_name, value):
        yield Issue(path, f"expected {_EXPECTED[shape.type_name]}, got {_kind(value)}")
    elif shape.type_name == "structure":
        yield from _structure(shape, value, path)
    elif shape.type_name == "list":
        yield from _bounds(shape, len(value), "{} items", path)
        for index, item in enumerate(value):
            yield from _walk(shape.member, item, (*path, index))
    elif shape.type_name == "map":
        yield from _bounds(shape, len(value), "{} entries", path)
        for key, item in value.items():
            at = (*path, str(key))
            for violation in _walk(shape.key, key, at):
                yield replace(violation, path=at, message=f"the name {violation.message}")
            yield from _walk(shape.value, item, at)
    elif shape.type_name == "union":
        kinds = shape.members.values()
        if all(list(_walk(kind, value, path)) for kind in kinds):
            expected = " or ".join(_EXPECTED[kind.type_name] for kind in kinds)
            yield Issue(path, f"expected {expected}, got {_kind(value)}")
    elif shape.type_name == "string":
        yield from _text(shape, value, path)
    elif shape.type_name in ("integer", "long", "float"):
        yield from _bounds(shape, value, "{}", path)


def _has_type(type_name: str, value: Any) -> bool:
    """Return True if botocore could send this value as that type; accept unknown types."""
    match type_name:
        case "structure" | "map":
            return isinstance(value, Mapping)
        case "list":
            return isinstance(value, (list, tuple))
        case "string":
            return isinstance(value, str)
        case "boolean":
            return isinstance(value, bool)
        case "integer" | "long":
            return isinstance(value, int) and not isinstance(value, bool)
        case "float":
            return isinstance(value, (int, float)) and math.isfinite(value)

    return True


def _structure(shape: Any, value: Mapping[Any, Any], path: Keys) -> Iterator[Issue]:
    for name in shape.metadata.get("required", ()):
        if name not in value:
            yield Issue((*path, name), "is missing")
    for name, item in value.items():
        if name in shape.members:
            yield from _walk(shape.members[name], item, (*path, name))
        else:
            meant = did_you_mean(str(name)[:SHOWN], shape.members)
            yield Issue((*path, str(name)), f"is not a known member{meant}")


def _text(shape: Any, value: str, path: Keys) -> Iterator[Issue]:
    shown = repr(_shortened(value, SHOWN))
    values = shape.metadata.get("enum") or ()
    if shape.metadata.get("anyCase"):
        value = value.lower()
    if values and value not in values:
        listed = ""
        if len(values) <= FEW:
            listed = f" ({', '.join(values)})"
        elif suggestions := nearest(value[:SHOWN], values, 3):
            listed = f" (near: {', '.join(suggestions)})"

        yield warning(f"{shown} is none of the {len(values)} known values{listed}", path=path)
        return

    wrong = list(_bounds(shape, len(value), "{} characters long", path))
    yield from wrong

    pattern = shape.metadata.get("pattern")
    # A text that is too long or too short rarely matches the pattern: that would report one mistake
    # twice.
    if pattern and not wrong:
        compiled = _compiled(pattern)
        if compiled is not None and not compiled.fullmatch(value):
            yield warning(f"{shown} does not match {_shortened(pattern, 3 * SHOWN)}", path=path)


@cache
def _compiled(pattern: str) -> re.Pattern[str] | None:
    """Return the pattern; None for an invalid one and for Java's syntax, such as `\\p{L}`."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # Python warns of syntax that it reads differently
        try:
            return re.compile(pattern, re.ASCII)  # in Java \d, \w and \s match ASCII only
        except (re.error, Warning, RecursionError, OverflowError):
            return None


def _bounds(shape: Any, size: Any, unit: str, path: Keys) -> Iterator[Issue]:
    """Yield `is 64 characters long, at most 63`, `has 101 entries, at most 100`."""
    smallest = None
    largest = None
    bits = _BITS.get(shape.type_name)
    if bits:
        smallest = -(2**bits)
        largest = 2**bits - 1

    least = shape.metadata.get("min", smallest)
    most = shape.metadata.get("max", largest)
    verb = "has" if unit.endswith(("items", "entries")) else "is"
    has = f"{verb} {unit.format(size)}"
    if least is not None and size < least:
        yield Issue(path, f"{has}, at least {least}")
    if most is not None and size > most:
        issue = Issue(path, f"{has}, at most {most}")
        if "max" in shape.metadata:
            issue = replace(issue, severity="warning")
        yield issue


def _kind(value: Any) -> str:
    """Return the kind of a value, such as `a list`, without the value itself."""
    match value:
        case None:
            return "nothing"
        case bool():
            return "true" if value else "false"
        case str():
            return "text"
        case int():
            return "a whole number"
        case float():
            return "a number"
        case list() | tuple():
            return "a list"
        case Mapping():
            return "a mapping"

    return type(value).__name__


def _shortened(text: str, limit: int) -> str:
    if len(text) <= limit:
        return text

    return text[: limit - 1] + "…"
