"""What a field of an event may hold: how it is checked, and what the reference calls it. Standard library only."""

from __future__ import annotations

import math
from typing import Annotated, Any, Callable, Dict, List, NamedTuple, Union

MAX_WHOLE_NUMBER = 2**63
"""Whole numbers stay below: larger ones are no counts, and break whoever divides by them or shows them."""


class InvalidValue(Exception):
    """A value that is not of its kind."""


class FieldType(NamedTuple):
    """What a field may hold."""

    check: Callable[[Any], Any]
    """Gives the value as it is to be used; raises `Wrong`."""
    description: str
    """What the reference calls it, with its unit."""


def check_whole_number(value: Any) -> int:
    """A whole number."""
    if isinstance(value, int) and not isinstance(value, bool) and -MAX_WHOLE_NUMBER < value < MAX_WHOLE_NUMBER:
        return value
    raise InvalidValue


def check_number(value: Any) -> Union[int, float]:
    """A number that one can calculate with."""
    if isinstance(value, float) and math.isfinite(value):
        return value
    return check_whole_number(value)


def check_timestamp(value: Any) -> Union[int, float]:
    """A Unix timestamp, of a year with four digits."""
    if 0 <= check_number(value) < 253_402_300_800:
        return check_number(value)
    raise InvalidValue


def check_measure(value: Any) -> Union[int, float]:
    """What a program measured: also NaN, which JSON lacks and null stands for, and infinity, which 400 digits are."""
    if value is None:
        return math.nan
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise InvalidValue
    try:
        return value if -MAX_WHOLE_NUMBER < value < MAX_WHOLE_NUMBER else float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def check_text(value: Any) -> str:
    """Text, also an empty one."""
    if isinstance(value, str):
        return value
    raise InvalidValue


def check_flag(value: Any) -> bool:
    """True or false."""
    if isinstance(value, bool):
        return value
    raise InvalidValue


def check_mapping(value: Any) -> dict[str, Any]:
    """Names and values of any kind."""
    if isinstance(value, dict) and all(isinstance(name, str) for name in value):
        return value
    raise InvalidValue


def check_measures(value: Any) -> dict[str, Any]:
    """Names and measures; what is none of them is left out."""
    found = {}
    for name, item in check_mapping(value).items():
        try:
            found[name] = check_measure(item)
        except InvalidValue:
            continue
    if value and not found:
        raise InvalidValue
    return found


def check_names(value: Any) -> list[str]:
    """A list of texts."""
    if isinstance(value, list):
        return [check_text(item) for item in value]
    raise InvalidValue


def check_whole_numbers(value: Any) -> list[int]:
    """A list of whole numbers."""
    if isinstance(value, list):
        return [check_whole_number(item) for item in value]
    raise InvalidValue


def check_one_of(*values: str) -> Callable[[Any], str]:
    """One of some words."""

    def word(value: Any) -> str:
        if isinstance(value, str) and value in values:
            return value
        raise InvalidValue

    return word


Timestamp = Annotated[float, FieldType(check_timestamp, "Unix timestamp (seconds)")]
Seconds = Annotated[float, FieldType(check_number, "seconds")]
Measure = Annotated[float, FieldType(check_measure, "number; null where it is not finite")]
Measures = Annotated[Dict[str, float], FieldType(check_measures, "numbers by name; null where one is not finite")]
Names = Annotated[List[str], FieldType(check_names, "list of texts")]
WholeNumbers = Annotated[List[int], FieldType(check_whole_numbers, "list of whole numbers")]
Object = Annotated[Dict[str, Any], FieldType(check_mapping, "object")]

BUILTIN_TYPES: Dict[Any, FieldType] = {
    int: FieldType(check_whole_number, "whole number"),
    float: FieldType(check_number, "number"),
    str: FieldType(check_text, "text"),
    bool: FieldType(check_flag, "true or false"),
}
"""Of annotations that say no more than a type."""
