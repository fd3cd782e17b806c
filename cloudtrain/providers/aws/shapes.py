"""Validate a value against a shape of a botocore service model, and report every mistake.

botocore itself checks required members, types and `min` only: the service would find a wrong enum
value, a name that is too long, or a pattern mismatch after the upload. A pattern must match the
whole text, as it must for the services; one that only Java understands is skipped. A message shows
at most the beginning of a value, and no part of a sensitive one.
"""

from __future__ import annotations

import math
import re
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import datetime
from decimal import Decimal
from functools import cache
from typing import Any

from cloudtrain.issues import Issue, Keys, did_you_mean, nearest, warning

SHOWN = 60
"""Maximum characters of a value in messages; in a map, such as variables, `SHOWN_IN_MAP`."""
SHOWN_IN_MAP = 40
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
    "double": "a number",
    "blob": "bytes",
    "timestamp": "a time (ISO 8601, or a Unix timestamp)",
}


def violations(shape: Any, value: Any) -> list[Issue]:
    """Return all violations of a shape, such as an operation's `input_shape`; empty if valid.

    The path of an issue leads to the wrong member, map key or list item. A violation of an enum, a
    pattern or a maximum is a warning: services allow more over time, and the model may be older.
    `shape`: a shape of botocore, or any object with the same attributes.
    """
    return list(_walk(shape, value, (), SHOWN))


def _walk(shape: Any, value: Any, path: Keys, limit: int) -> Iterator[Issue]:
    if getattr(shape, "is_document_type", False):
        yield from _document(value, path)
    elif not _has_type(shape.type_name, value):
        yield Issue(
            path, f"expected {_EXPECTED.get(shape.type_name, shape.type_name)}, got {_kind(value)}"
        )
    elif shape.type_name == "structure":
        yield from _structure(shape, value, path, limit)
    elif shape.type_name == "list":
        yield from _bounds(shape, len(value), "{} items", path)
        for index, item in enumerate(value):
            yield from _walk(shape.member, item, (*path, index), limit)
    elif shape.type_name == "map":
        yield from _bounds(shape, len(value), "{} entries", path)
        for key, item in value.items():
            at = (*path, str(key))
            for violation in _walk(shape.key, key, at, SHOWN):
                message = f"the name {violation.message}".replace(
                    "name expected", "name: expected", 1
                )
                yield replace(violation, path=at, message=message)
            yield from _walk(shape.value, item, at, SHOWN_IN_MAP)
    elif shape.type_name == "string":
        yield from _text(shape, value, path, limit)
    elif shape.type_name == "blob":
        yield from _bounds(
            shape, len(value) if hasattr(value, "__len__") else None, "{} bytes long", path
        )
    elif shape.type_name in ("integer", "long", "float", "double"):
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
        case "float" | "double":
            if isinstance(value, (float, Decimal)):
                return math.isfinite(value)
            return isinstance(value, int) and not isinstance(value, bool)
        case "blob":
            return isinstance(value, (bytes, bytearray, str)) or hasattr(value, "read")
        case "timestamp":
            return _is_time(value)
    return True


def _is_time(value: Any) -> bool:
    if not isinstance(value, str):
        return isinstance(value, (datetime, int, float)) and not isinstance(value, bool)
    for read in (datetime.fromisoformat, float):
        try:
            read(value)
        except ValueError:
            continue
        return True
    return False


def _structure(shape: Any, value: Mapping[Any, Any], path: Keys, limit: int) -> Iterator[Issue]:
    for name in shape.metadata.get("required", ()):
        # botocore generates the idempotency token itself.
        is_generated = not path and shape.members[name].metadata.get("idempotencyToken")
        if name not in value and not is_generated:
            yield Issue((*path, name), "is missing")
    if getattr(shape, "is_tagged_union", False) and len(value) != 1:
        yield Issue(
            path,
            f"expected exactly one of {', '.join(shape.members)}, got"
            f" {' and '.join(map(str, value)) or 'none'}",
        )
    for name, item in value.items():
        if name in shape.members:
            yield from _walk(shape.members[name], item, (*path, name), limit)
        else:
            meant = did_you_mean(str(name)[:SHOWN], shape.members)
            yield Issue((*path, str(name)), f"is not a known member{meant}")


def _text(shape: Any, value: str, path: Keys, limit: int) -> Iterator[Issue]:
    shown = "this text" if shape.metadata.get("sensitive") else _shown(value, limit)
    values = shape.metadata.get("enum") or ()
    if values and value not in values:
        near = ", ".join(values if len(values) <= FEW else nearest(value[:SHOWN], values, 3))
        listed = f" ({'near: ' if len(values) > FEW else ''}{near})" if near else ""
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
            yield warning(f"{shown} does not match {_shortened(pattern, 2 * SHOWN)}", path=path)


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
    bits = {"integer": 31, "long": 63}.get(shape.type_name)
    least = shape.metadata.get("min", -(2**bits) if bits else None)
    most = shape.metadata.get("max", 2**bits - 1 if bits else None)
    has = ("has " if unit.endswith(("items", "entries")) else "is ") + unit.format(size)
    if size is not None and least is not None and size < least:
        yield Issue(path, f"{has}, at least {least}")
    if size is not None and most is not None and size > most:
        issue = Issue(path, f"{has}, at most {most}")
        yield replace(issue, severity="warning") if "max" in shape.metadata else issue


def _document(value: Any, path: Keys) -> Iterator[Issue]:
    """Yield issues with a document, which is any JSON."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from _document(item, (*path, str(key)))
    elif isinstance(value, (list, tuple)):
        for index, item in enumerate(value):
            yield from _document(item, (*path, index))
    elif not isinstance(value, (str, int, float, bool, type(None))):
        yield Issue(path, f"expected what JSON can hold, got {_kind(value)}")


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
        case float() | Decimal():
            return "a number" if math.isfinite(value) else str(value)
        case list() | tuple():
            return "a list"
        case Mapping():
            return "a mapping"
    return f"{type(value).__module__}.{type(value).__name__}".removeprefix("builtins.")


def _shown(value: str, limit: int) -> str:
    return repr(_shortened(value, limit))


def _shortened(text: str, limit: int) -> str:
    return text if len(text) <= limit else text[: limit - 1] + "…"
