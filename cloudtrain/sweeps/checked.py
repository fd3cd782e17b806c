"""Reader of the files of a sweep that checks each field against the type of its class."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from functools import cache
from types import NoneType
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

from cloudtrain_launcher.event_record import InvalidValue, Timestamp, field_type

T = TypeVar("T")
Check = Callable[[Any], Any]
"""Return the value to use, or raise InvalidValue."""


def read_checked(kind: type[T], document: Any, **checks: Check) -> T:
    """Return the dataclass in a JSON object. Ignore unknown keys.

    `checks` replaces the checks of some fields. Raise ValueError if a field is missing or invalid.
    """
    try:
        return _read(kind, document, checks)
    except (InvalidValue, TypeError) as error:
        raise ValueError(str(error) or "not an object") from None


def check_parameters(value: Any) -> Mapping[str, Any]:
    """Check the values of a trial: text, numbers, true or false by name."""
    if isinstance(value, dict) and all(
        isinstance(item, str | int | float) for item in value.values()
    ):
        return value
    raise InvalidValue


def _read(kind: type[T], document: Any, overrides: Mapping[str, Check]) -> T:
    if not isinstance(document, dict):
        raise InvalidValue
    hashable: Any = kind
    checks = {**_checks(hashable), **overrides}
    values = {}
    for name in checks.keys() & document.keys():
        try:
            values[name] = checks[name](document[name])
        except InvalidValue:
            raise InvalidValue(f"{name} has a value of another type") from None
    return kind(**values)


@cache
def _checks(kind: Any) -> Mapping[str, Check]:
    hints = get_type_hints(kind)
    checks = {item.name: _check_of(hints[item.name]) for item in fields(kind)}
    return {**checks, "time": _check_of(Timestamp)} if "time" in checks else checks


def _check_of(annotation: Any) -> Check:
    options = get_args(annotation)
    if NoneType in options:
        check = _check_of(next(option for option in options if option is not NoneType))
        return lambda value: None if value is None else check(value)
    if get_origin(annotation) is tuple:
        check = _check_of(options[0])
        return lambda value: tuple(check(item) for item in _check_list(value))
    if is_dataclass(annotation):
        kind: Any = annotation
        return lambda value: _read(kind, value, {})
    if get_origin(annotation) is Mapping:
        return check_parameters
    value_or_none = field_type(annotation).check

    def check_value(value: Any) -> Any:
        checked = value_or_none(value)
        if checked is None:
            raise InvalidValue
        return checked

    return check_value


def _check_list(value: Any) -> list[Any]:
    if isinstance(value, list | tuple):
        return list(value)
    raise InvalidValue
