"""Types of event fields: checks, and descriptions for the reference. Standard library only.

A check returns the value to use, or raises `InvalidValue`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Annotated, Any, NamedTuple

MAX_WHOLE_NUMBER = 2**63
"""Upper limit of whole numbers: larger ones are not counts, and overflow elsewhere."""


class InvalidValue(Exception):
    """A value does not have its field's type."""


class FieldType(NamedTuple):
    """The type of a field."""

    check: Callable[[Any], Any]
    """Check that returns the value to use or raises `InvalidValue`."""
    description: str
    """Description in the reference, with the unit."""


def check_whole_number(value: Any) -> int:
    """Check a whole number below `MAX_WHOLE_NUMBER`; booleans are invalid."""
    if (
        isinstance(value, int)
        and not isinstance(value, bool)
        and -MAX_WHOLE_NUMBER < value < MAX_WHOLE_NUMBER
    ):
        return value
    raise InvalidValue


def check_number(value: Any) -> int | float:
    """A finite number."""
    if isinstance(value, float) and math.isfinite(value):
        return value
    return check_whole_number(value)


def check_timestamp(value: Any) -> int | float:
    """A Unix timestamp in seconds, from 1970 to 9999."""
    if 0 <= check_number(value) < 253_402_300_800:
        return check_number(value)
    raise InvalidValue


def check_measure(value: Any) -> int | float:
    """A measured number, which may be NaN (null in JSON) or infinite (a whole number of 400
    digits).
    """
    if value is None:
        return math.nan
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise InvalidValue
    try:
        return value if -MAX_WHOLE_NUMBER < value < MAX_WHOLE_NUMBER else float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def check_text(value: Any) -> str:
    """A string, which may be empty."""
    if isinstance(value, str):
        return value
    raise InvalidValue


def check_flag(value: Any) -> bool:
    """True or false."""
    if isinstance(value, bool):
        return value
    raise InvalidValue


def check_mapping(value: Any) -> dict[str, Any]:
    """An object: names and values of any type."""
    if isinstance(value, dict) and all(isinstance(name, str) for name in value):
        return value
    raise InvalidValue


def check_measures(value: Any) -> dict[str, Any]:
    """Check an object of measured numbers; drop other values, but keep at least one number."""
    numbers = {}
    for name, item in check_mapping(value).items():
        try:
            numbers[name] = check_measure(item)
        except InvalidValue:
            continue
    if value and not numbers:
        raise InvalidValue
    return numbers


def check_names(value: Any) -> list[str]:
    """A list of strings."""
    if isinstance(value, list):
        return [check_text(item) for item in value]
    raise InvalidValue


def check_whole_numbers(value: Any) -> list[int]:
    """A list of whole numbers."""
    if isinstance(value, list):
        return [check_whole_number(item) for item in value]
    raise InvalidValue


def check_one_of(*values: str) -> Callable[[Any], str]:
    """Return a check for one of these strings."""

    def word(value: Any) -> str:
        if isinstance(value, str) and value in values:
            return value
        raise InvalidValue

    return word


Timestamp = Annotated[float, FieldType(check_timestamp, "Unix timestamp (seconds)")]
Seconds = Annotated[float, FieldType(check_number, "seconds")]
Measure = Annotated[float, FieldType(check_measure, "number; null where it is not finite")]
Measures = Annotated[
    dict[str, float],
    FieldType(check_measures, "numbers by name; null for a number that is not finite"),
]
Names = Annotated[list[str], FieldType(check_names, "list of texts")]
WholeNumbers = Annotated[list[int], FieldType(check_whole_numbers, "list of whole numbers")]
Object = Annotated[dict[str, Any], FieldType(check_mapping, "object")]

BUILTIN_TYPES: dict[Any, FieldType] = {
    int: FieldType(check_whole_number, "whole number"),
    float: FieldType(check_number, "number"),
    str: FieldType(check_text, "text"),
    bool: FieldType(check_flag, "true or false"),
}
"""Types of fields with plain annotations."""
