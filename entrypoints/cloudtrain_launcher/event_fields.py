"""What a field of an event may hold: how it is checked, and what the reference calls it. Standard library only."""

from __future__ import annotations

import math
from typing import Annotated, Any, Callable, Dict, List, NamedTuple, Union

LARGEST = 2**63
"""Whole numbers stay below: larger ones are no counts, and break whoever divides by them or shows them."""


class Wrong(Exception):
    """A value that is not of its kind."""


class Kind(NamedTuple):
    """What a field may hold."""

    check: Callable[[Any], Any]
    """Gives the value as it is to be used; raises `Wrong`."""
    text: str
    """What the reference calls it, with its unit."""


def whole(value: Any) -> int:
    """A whole number."""
    if isinstance(value, int) and not isinstance(value, bool) and -LARGEST < value < LARGEST:
        return value
    raise Wrong


def number(value: Any) -> Union[int, float]:
    """A number that one can calculate with."""
    if isinstance(value, float) and math.isfinite(value):
        return value
    return whole(value)


def timestamp(value: Any) -> Union[int, float]:
    """A Unix timestamp, of a year with four digits."""
    if 0 <= number(value) < 253_402_300_800:
        return number(value)
    raise Wrong


def measure(value: Any) -> Union[int, float]:
    """What a program measured: also NaN, which JSON lacks and null stands for, and infinity, which 400 digits are."""
    if value is None:
        return math.nan
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise Wrong
    try:
        return value if -LARGEST < value < LARGEST else float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def text(value: Any) -> str:
    """Text, also an empty one."""
    if isinstance(value, str):
        return value
    raise Wrong


def flag(value: Any) -> bool:
    """True or false."""
    if isinstance(value, bool):
        return value
    raise Wrong


def mapping(value: Any) -> dict[str, Any]:
    """Names and values of any kind."""
    if isinstance(value, dict) and all(isinstance(name, str) for name in value):
        return value
    raise Wrong


def measures(value: Any) -> dict[str, Any]:
    """Names and measures; what is none of them is left out."""
    found = {}
    for name, item in mapping(value).items():
        try:
            found[name] = measure(item)
        except Wrong:
            continue
    if value and not found:
        raise Wrong
    return found


def names(value: Any) -> list[str]:
    """A list of texts."""
    if isinstance(value, list):
        return [text(item) for item in value]
    raise Wrong


def whole_numbers(value: Any) -> list[int]:
    """A list of whole numbers."""
    if isinstance(value, list):
        return [whole(item) for item in value]
    raise Wrong


def one_of(*values: str) -> Callable[[Any], str]:
    """One of some words."""

    def word(value: Any) -> str:
        if isinstance(value, str) and value in values:
            return value
        raise Wrong

    return word


Timestamp = Annotated[float, Kind(timestamp, "Unix timestamp (seconds)")]
Seconds = Annotated[float, Kind(number, "seconds")]
Measure = Annotated[float, Kind(measure, "number; null where it is not finite")]
Measures = Annotated[Dict[str, float], Kind(measures, "numbers by name; null where one is not finite")]
Names = Annotated[List[str], Kind(names, "list of texts")]
WholeNumbers = Annotated[List[int], Kind(whole_numbers, "list of whole numbers")]
Object = Annotated[Dict[str, Any], Kind(mapping, "object")]

PLAIN: Dict[Any, Kind] = {
    int: Kind(whole, "whole number"),
    float: Kind(number, "number"),
    str: Kind(text, "text"),
    bool: Kind(flag, "true or false"),
}
"""Of annotations that say no more than a type."""
