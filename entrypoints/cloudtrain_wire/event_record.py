"""Base classes of events: frozen records with checked fields. Standard library only.

A subclass of `Record` is a frozen class with keyword-only fields. Fields without a default are
required. Unset fields are not written, so a record from JSON is written unchanged.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Set
from dataclasses import FrozenInstanceError
from types import UnionType
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    ClassVar,
    Literal,
    NamedTuple,
    NoReturn,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

if TYPE_CHECKING:
    from typing import dataclass_transform
else:  # new in Python 3.11, and only for type checkers

    def dataclass_transform(**_):  # noqa: ANN003, ANN201
        return lambda cls: cls


CLIENT = "client"
"""Written by the client and by a local run's supervisor. A job's line is text."""
LAUNCHER = "launcher"
"""Written by a node's launcher. A program's line is text."""
RANK = "rank"
"""Written by the rank's process, with its signature, and by the launcher."""
PROGRAM = "program"
"""Written by any program of the job."""

MAX_WHOLE_NUMBER = 2**63
"""Upper limit of whole numbers: larger ones are not counts, and overflow elsewhere."""
MAX_TIMESTAMP = 253_402_300_800
"""The end of the year 9999."""

R = TypeVar("R", bound="Record")

EVENT_TYPES: dict[str, type[Event]] = {}
"""Event class by `type`."""


class InvalidValue(Exception):
    """A JSON value is not a record of its class."""


class FieldType(NamedTuple):
    """The type of a field."""

    check: Callable[[Any], Any]
    """Function that returns the value to use, or None for an invalid one."""
    description: str
    """Description in the reference, with the unit."""


def _whole_number(value: Any) -> int | None:
    is_whole = isinstance(value, int) and not isinstance(value, bool)
    return value if is_whole and -MAX_WHOLE_NUMBER < value < MAX_WHOLE_NUMBER else None


def _number(value: Any) -> float | None:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return _whole_number(value)


def _timestamp(value: Any) -> float | None:
    number = _number(value)
    return number if number is not None and 0 <= number < MAX_TIMESTAMP else None


def _measure(value: Any) -> float | None:
    """Check a measured number: null is NaN, and a whole number of 400 digits infinite."""
    if value is None:
        return math.nan
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None

    try:
        if -MAX_WHOLE_NUMBER < value < MAX_WHOLE_NUMBER:
            return value

        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def _measures(value: Any) -> dict[str, float] | None:
    """Check an object of measured numbers; drop other values, but keep at least one number."""
    if not isinstance(value, dict):
        return None

    numbers = {}
    for name, item in value.items():
        number = _measure(item)
        if number is not None:
            numbers[name] = number

    return numbers if numbers or not value else None


def _list_of(check: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def check_list(value: Any) -> Any:
        is_valid = isinstance(value, list) and all(check(item) is not None for item in value)
        return value if is_valid else None

    return check_list


def _instance_of(kind: type) -> Callable[[Any], Any]:
    return lambda value: value if isinstance(value, kind) else None


Timestamp = Annotated[float, FieldType(_timestamp, "Unix timestamp (seconds)")]
Seconds = Annotated[float, FieldType(_number, "seconds")]
Measure = Annotated[float, FieldType(_measure, "number; null where it is not finite")]
Measures = Annotated[
    dict[str, float],
    FieldType(_measures, "numbers by name; null for a number that is not finite"),
]
Names = Annotated[list[str], FieldType(_list_of(_instance_of(str)), "list of texts")]
WholeNumbers = Annotated[list[int], FieldType(_list_of(_whole_number), "list of whole numbers")]
Object = Annotated[dict[str, Any], FieldType(_instance_of(dict), "object")]

_BUILTIN_TYPES: dict[Any, FieldType] = {
    int: FieldType(_whole_number, "whole number"),
    float: FieldType(_number, "number"),
    str: FieldType(_instance_of(str), "text"),
    bool: FieldType(_instance_of(bool), "true or false"),
}
"""Types of fields with plain annotations."""


def field_type(annotation: Any) -> FieldType:
    """Return the field type of an annotation. Raise LookupError for an unknown annotation."""
    origin = get_origin(annotation)
    arguments = get_args(annotation)
    if origin is Annotated:
        return next(item for item in arguments if isinstance(item, FieldType))

    if origin is Literal:
        words = " or ".join(f"`{word}`" for word in arguments)
        return FieldType(lambda value: value if value in arguments else None, words)

    if origin in (Union, UnionType):  # Optional: null is not a value, and None is not written
        return field_type(next(item for item in arguments if item is not type(None)))

    if isinstance(annotation, type) and issubclass(annotation, Record):
        name = annotation.__name__.lower()
        return FieldType(annotation.read_or_none, f"[{name}](#{name})")

    return _BUILTIN_TYPES[annotation]


@dataclass_transform(kw_only_default=True, frozen_default=True)
class Record:
    """A frozen record, read from JSON and written to it."""

    ADDED_ON_SEND: ClassVar[frozenset[str]] = frozenset()
    """Fields added when the record is sent, optional in a new record."""
    REQUIRED: ClassVar[frozenset[str]] = frozenset()
    """Those that are required in a record from JSON."""

    _types: ClassVar[Mapping[str, FieldType] | None] = None
    _required: ClassVar[frozenset[str]] = frozenset()
    _extra: ClassVar[Mapping[str, Any]] = {}

    def __init_subclass__(cls) -> None:
        cls._types = None

    def __init__(self, **values: Any) -> None:
        types = self.field_types()
        self._require_none(
            values.keys() - types.keys() or self._required - values.keys() - self.ADDED_ON_SEND
        )
        vars(self).update(values)

    def _require_none(self, wrong: Set[str]) -> None:
        if wrong:
            raise TypeError(
                f"{type(self).__name__}: unknown or missing: {', '.join(sorted(wrong))}"
            )

    @classmethod
    def field_types(cls) -> Mapping[str, FieldType]:
        """Return the type of each field, computed on first use."""
        if cls._types is None:
            hints = get_type_hints(cls, include_extras=True)
            types = {}
            for name, hint in hints.items():
                if get_origin(hint) is not ClassVar:
                    types[name] = field_type(hint)

            cls._types = types
            without_default = {name for name in cls._types if not hasattr(cls, name)}
            cls._required = cls.REQUIRED | without_default

        return cls._types

    @classmethod
    def required_fields(cls) -> frozenset[str]:
        """Return the fields that a record from JSON must have."""
        cls.field_types()
        return cls._required

    @classmethod
    def read(cls: type[R], value: Any) -> R:
        """Parse a JSON object. Raise `InvalidValue` for a missing or invalid required field.

        Unknown fields are kept in `extra` and written again.
        """
        if not isinstance(value, dict):
            raise InvalidValue

        types = cls._types or cls.field_types()
        valid = {}
        extra = {}

        for name, item in value.items():
            if name in types:
                checked = types[name].check(item)
                if checked is not None:
                    valid[name] = checked
                elif name in cls.ADDED_ON_SEND:
                    raise InvalidValue
            elif name != "type":
                extra[name] = item

        if not cls._required <= valid.keys():
            raise InvalidValue

        record = cls.__new__(cls)
        vars(record).update(valid)
        if extra:
            vars(record)["_extra"] = extra

        return record

    @classmethod
    def read_or_none(cls: type[R], value: Any) -> R | None:
        """Parse a JSON object; return None if it is invalid."""
        try:
            return cls.read(value)
        except InvalidValue:
            return None

    @property
    def extra(self) -> Mapping[str, Any]:
        """Return fields unknown to the class: a program's own, or a newer version's."""
        return self._extra

    def to_json(self) -> dict[str, Any]:
        """Return the fields that were set, as a JSON object."""
        values = {}
        for name, value in vars(self).items():
            if isinstance(value, Record):
                values[name] = value.to_json()
            elif name[0] != "_":
                values[name] = value

        values.update(self._extra)

        return values

    def replace(self: R, **changes: Any) -> R:
        """Return a copy with other values. Raise TypeError for an unknown field."""
        self._require_none(changes.keys() - self.field_types().keys())
        copy = type(self).__new__(type(self))
        vars(copy).update({**vars(self), **changes})

        return copy

    def without(self: R, *names: str) -> R:
        """Return a copy without these fields."""
        copy = type(self).__new__(type(self))
        vars(copy).update(vars(self))
        for name in names:
            vars(copy).pop(name, None)

        return copy

    def __eq__(self, other: object) -> bool:
        if type(self) is not type(other):
            return NotImplemented

        if self._extra != other._extra:
            return False

        return all(getattr(self, name) == getattr(other, name) for name in self.field_types())

    __hash__ = None  # type: ignore[assignment]  # fields may be dicts

    def __repr__(self) -> str:
        values = ", ".join(f"{name}={value!r}" for name, value in vars(self).items())
        return f"{type(self).__name__}({values})"

    def __setattr__(self, name: str, value: Any) -> NoReturn:
        raise FrozenInstanceError(f"cannot assign to field {name!r}")


class Event(Record):
    """An event. (node, rank, seq) identifies it, to count repeated copies once."""

    TYPE: ClassVar[str] = ""
    WRITER: ClassVar[str] = PROGRAM
    ADDED_ON_SEND: ClassVar[frozenset[str]] = frozenset({"time", "node", "rank", "seq"})

    time: Timestamp = 0.0
    """The time, by the clock of the reporting machine."""
    node: int = 0
    """The node, from 0."""
    rank: int = -1
    """The reporting process, from 0; -1: the node itself."""
    seq: int | None = None
    """A number that increases with each event of a rank: the clock in nanoseconds or one more."""

    def __init_subclass__(cls, type: str = "", writer: str = PROGRAM, requires: str = "") -> None:
        super().__init_subclass__()
        cls.TYPE = type
        cls.WRITER = writer
        cls.REQUIRED = frozenset(requires.split())
        if type:
            EVENT_TYPES[type] = cls

    @property
    def type(self) -> str:
        """Return the `type` in JSON."""
        return self.TYPE

    def fields(self) -> dict[str, Any]:
        """Return the fields that were set, without the type."""
        return super().to_json()

    def to_json(self) -> dict[str, Any]:
        """Return the fields that were set, as a JSON object."""
        return {"type": self.type, **self.fields()}
