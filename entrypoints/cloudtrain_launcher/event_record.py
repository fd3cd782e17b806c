"""Base classes of events: frozen records with checked fields. Standard library only.

A subclass of `Record` is a frozen dataclass with keyword-only fields. Fields without a default are
required. Unset fields are not written, so a record from JSON is written unchanged.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Set
from dataclasses import FrozenInstanceError, dataclass, fields
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

from cloudtrain_launcher.event_fields import (
    BUILTIN_TYPES,
    FieldType,
    InvalidValue,
    Timestamp,
    check_one_of,
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


def field_type(annotation: Any) -> FieldType:
    """Return the field type of an annotation. Raise LookupError for an unknown annotation."""
    origin = get_origin(annotation)
    arguments = get_args(annotation)
    if origin is Annotated:
        return next(item for item in arguments if isinstance(item, FieldType))
    if origin is Literal:
        return FieldType(check_one_of(*arguments), " or ".join(f"`{word}`" for word in arguments))
    if origin in (Union, UnionType):  # Optional: null is not a value, and None is not written
        return field_type(next(item for item in arguments if item is not type(None)))
    if isinstance(annotation, type) and issubclass(annotation, Record):
        return FieldType(
            annotation.read, f"[{annotation.__name__.lower()}](#{annotation.__name__.lower()})"
        )
    if annotation in BUILTIN_TYPES:
        return BUILTIN_TYPES[annotation]
    raise LookupError(f"no check for a field of the type {annotation}")


class Checks(NamedTuple):
    """Checks of a class of records."""

    known_fields: Mapping[str, Callable[[Any], Any]]
    required: frozenset[str]
    strict: frozenset[str]
    """Fields that invalidate the record. Other invalid fields are left out."""


R = TypeVar("R", bound="Record")


@dataclass_transform(kw_only_default=True, frozen_default=True)
class Record:
    """A frozen dataclass, read from JSON and written to it."""

    ADDED_ON_SEND: ClassVar[frozenset[str]] = frozenset()
    """Fields added when the record is sent, optional in a new record."""
    REQUIRED: ClassVar[frozenset[str]] = frozenset()
    """Those that are required in a record from JSON."""

    _checks: ClassVar[Checks | None] = None
    _extra: ClassVar[Mapping[str, Any]] = {}

    def __init_subclass__(cls) -> None:
        dataclass(init=False, repr=False, eq=False)(cls)
        cls._checks = None

    def __init__(self, **values: Any) -> None:
        checks = self.checks()
        self._require_none(
            values.keys() - checks.known_fields.keys()
            or checks.required - values.keys() - self.ADDED_ON_SEND
        )
        vars(self).update(values)

    def _require_none(self, wrong: Set[str]) -> None:
        if wrong:
            raise TypeError(
                f"{type(self).__name__}: unknown or missing: {', '.join(sorted(wrong))}"
            )

    @classmethod
    def field_types(cls) -> dict[str, FieldType]:
        """Return the type of each field."""
        hints = get_type_hints(cls, include_extras=True)
        return {field.name: field_type(hints[field.name]) for field in fields(cls)}  # type: ignore[arg-type]

    @classmethod
    def checks(cls) -> Checks:
        """Return this class's checks, computed on first use."""
        if cls._checks is None:
            checks = {name: kind.check for name, kind in cls.field_types().items()}
            required = cls.REQUIRED | {name for name in checks if not hasattr(cls, name)}
            cls._checks = Checks(checks, required, required | cls.ADDED_ON_SEND)
        return cls._checks

    @classmethod
    def read(cls: type[R], value: Any) -> R:
        """Parse a JSON object. Raise `InvalidValue` for a missing or invalid required field.

        Unknown fields are kept in `extra` and written again.
        """
        if not isinstance(value, dict):
            raise InvalidValue
        known_fields, required, strict = cls._checks or cls.checks()
        valid = {}
        extra = {}
        for name, item in value.items():
            check = known_fields.get(name)
            if check is not None:
                try:
                    valid[name] = check(item)
                except InvalidValue:
                    if name in strict:
                        raise
            elif name != "type":
                extra[name] = item
        if not required <= valid.keys():
            raise InvalidValue
        record = cls.__new__(cls)
        vars(record).update(valid)
        if extra:
            vars(record)["_extra"] = extra
        return record

    @property
    def extra(self) -> Mapping[str, Any]:
        """Return fields unknown to the class: a program's own, or a newer version's."""
        return self._extra

    def to_json(self) -> dict[str, Any]:
        """Return the fields that were set, as a JSON object."""
        values = {name: value for name, value in vars(self).items() if name[0] != "_"}
        for name, value in values.items():
            if isinstance(value, Record):
                values[name] = value.to_json()
        return {**values, **self._extra}

    def replace(self: R, **changes: Any) -> R:
        """Return a copy with other values. Raise TypeError for an unknown field."""
        self._require_none(changes.keys() - self.checks().known_fields.keys())
        copy = type(self).__new__(type(self))
        vars(copy).update({**vars(self), **changes})
        return copy

    def without(self: R, *names: str) -> R:
        """Return a copy without these fields."""
        copy = type(self).__new__(type(self))
        vars(copy).update({name: value for name, value in vars(self).items() if name not in names})
        return copy

    def __eq__(self, other: object) -> bool:
        if type(self) is not type(other):
            return NotImplemented
        return all(
            getattr(self, name) == getattr(other, name)
            for name in (*self.checks().known_fields, "_extra")
        )

    __hash__ = None  # type: ignore[assignment]  # fields may be dicts

    def __repr__(self) -> str:
        values = ", ".join(f"{name}={value!r}" for name, value in vars(self).items())
        return f"{type(self).__name__}({values})"

    def __setattr__(self, name: str, value: Any) -> NoReturn:
        raise FrozenInstanceError(f"cannot assign to field {name!r}")

    def __delattr__(self, name: str) -> NoReturn:
        raise FrozenInstanceError(f"cannot delete field {name!r}")


EVENT_TYPES: dict[str, type[Event]] = {}
"""Event class by `type`."""


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
