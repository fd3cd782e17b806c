"""What events are made of: frozen records, read from JSON by the checks of their fields. Standard library only.

A subclass of `Record` is a frozen dataclass with keyword-only fields, on Python 3.9 too, where dataclasses themselves
know none. A field without a default is required. What was not said is not written: a record that was read is written
as it was.
"""

from __future__ import annotations

from dataclasses import FrozenInstanceError, dataclass, fields
from typing import (
    TYPE_CHECKING,
    AbstractSet,
    Annotated,
    Any,
    Callable,
    ClassVar,
    Dict,
    FrozenSet,
    Literal,
    Mapping,
    NamedTuple,
    NoReturn,
    Optional,
    Type,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

from .event_fields import BUILTIN_TYPES, FieldType, InvalidValue, Timestamp, check_one_of

if TYPE_CHECKING:
    from typing import dataclass_transform
else:  # of Python 3.11, and of no use at run time

    def dataclass_transform(**_):  # noqa: ANN003, ANN201
        return lambda cls: cls


CLIENT = "client"
"""Only cloudtrain where it was submitted from, and a local run's supervisor. A job that prints one is not believed."""
LAUNCHER = "launcher"
"""Only a node's launcher. A program that prints one is not believed."""
RANK = "rank"
"""The process that the launcher has started for a rank, which signs it; and the launcher."""
PROGRAM = "program"
"""Any program of the job."""


def field_type(annotation: Any) -> FieldType:
    """What a field of this annotation may hold. LookupError for one that has no check."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return next(item for item in arguments if isinstance(item, FieldType))
    if origin is Literal:
        return FieldType(check_one_of(*arguments), " or ".join(f"`{word}`" for word in arguments))
    if origin is Union:  # Optional: null is not a value, a field that has none is not written
        return field_type(next(item for item in arguments if item is not type(None)))
    if isinstance(annotation, type) and issubclass(annotation, Record):
        return FieldType(annotation.read, f"[{annotation.__name__.lower()}](#{annotation.__name__.lower()})")
    if annotation in BUILTIN_TYPES:
        return BUILTIN_TYPES[annotation]
    raise LookupError(f"no check for a field of the type {annotation}")


class Checks(NamedTuple):
    """What is checked of a class of records."""

    known: Mapping[str, Callable[[Any], Any]]
    required: FrozenSet[str]
    strict: FrozenSet[str]
    """Fields that may be missing, some of them, but never wrong. Any other that is wrong is left out."""


R = TypeVar("R", bound="Record")


@dataclass_transform(kw_only_default=True, frozen_default=True)
class Record:
    """A frozen dataclass, read from JSON and written to it."""

    ADDED_ON_SEND: ClassVar[FrozenSet[str]] = frozenset()
    """Fields that whoever sends the record adds: its maker may leave them out, and they may never be wrong."""
    REQUIRED: ClassVar[FrozenSet[str]] = frozenset()
    """Those of them without which the record says nothing."""

    _checks: ClassVar[Optional[Checks]] = None
    _extra: ClassVar[Mapping[str, Any]] = {}

    def __init_subclass__(cls) -> None:
        dataclass(init=False, repr=False, eq=False)(cls)
        cls._checks = None

    def __init__(self, **values: Any) -> None:
        checks = self.checks()
        self._require_none(values.keys() - checks.known.keys() or checks.required - values.keys() - self.ADDED_ON_SEND)
        vars(self).update(values)

    def _require_none(self, wrong: AbstractSet[str]) -> None:
        if wrong:
            raise TypeError(f"{type(self).__name__}: unknown or missing: {', '.join(sorted(wrong))}")

    @classmethod
    def field_types(cls) -> dict[str, FieldType]:
        """What each field may hold."""
        hints = get_type_hints(cls, include_extras=True)
        return {field.name: field_type(hints[field.name]) for field in fields(cls)}  # type: ignore[arg-type]

    @classmethod
    def checks(cls) -> Checks:
        """What is checked; worked out once, when it is first needed."""
        if cls._checks is None:
            known = {name: kind.check for name, kind in cls.field_types().items()}
            required = cls.REQUIRED | {name for name in known if not hasattr(cls, name)}
            cls._checks = Checks(known, required, required | cls.ADDED_ON_SEND)
        return cls._checks

    @classmethod
    def read(cls: Type[R], value: Any) -> R:
        """The record in a JSON object. `Wrong` when a field is missing, or one that matters is not of its kind.

        Fields that this version does not know are kept, and written again.
        """
        if not isinstance(value, dict):
            raise InvalidValue
        known, required, strict = cls._checks or cls.checks()
        said, extra = {}, {}
        for name, item in value.items():
            check = known.get(name)
            if check is not None:
                try:
                    said[name] = check(item)
                except InvalidValue:
                    if name in strict:
                        raise
            elif name != "type":
                extra[name] = item
        if not required <= said.keys():
            raise InvalidValue
        found = cls.__new__(cls)
        values = vars(found)
        values.update(said)
        if extra:
            values["_extra"] = extra
        return found

    @property
    def extra(self) -> Mapping[str, Any]:
        """Fields that are not listed here: of a program's own, or of a newer version."""
        return self._extra

    def to_json(self) -> dict[str, Any]:
        """What was said, as a JSON object."""
        said = {name: value for name, value in vars(self).items() if name[0] != "_"}
        for name, value in said.items():
            if isinstance(value, Record):
                said[name] = value.to_json()
        return {**said, **self._extra}

    def replace(self: R, **changes: Any) -> R:
        """The same with other values."""
        self._require_none(changes.keys() - self.checks().known.keys())
        found = type(self).__new__(type(self))
        vars(found).update({**vars(self), **changes})
        return found

    def without(self: R, *names: str) -> R:
        """The same, these fields unsaid."""
        found = type(self).__new__(type(self))
        vars(found).update({name: value for name, value in vars(self).items() if name not in names})
        return found

    def __eq__(self, other: object) -> bool:
        if type(self) is not type(other):
            return NotImplemented
        return all(getattr(self, name) == getattr(other, name) for name in (*self.checks().known, "_extra"))

    __hash__ = None  # type: ignore[assignment]  # fields may be dicts

    def __repr__(self) -> str:
        said = ", ".join(f"{name}={value!r}" for name, value in vars(self).items())
        return f"{type(self).__name__}({said})"

    def __setattr__(self, name: str, value: Any) -> NoReturn:
        raise FrozenInstanceError(f"cannot assign to field {name!r}")

    def __delattr__(self, name: str) -> NoReturn:
        raise FrozenInstanceError(f"cannot delete field {name!r}")


EVENT_TYPES: Dict[str, Type[Event]] = {}
"""Each class by the `type` of its events."""


class Event(Record):
    """Something that happened. (node, rank, seq) names it: a reader that meets it twice counts it once."""

    TYPE: ClassVar[str] = ""
    WRITER: ClassVar[str] = PROGRAM
    ADDED_ON_SEND: ClassVar[FrozenSet[str]] = frozenset({"time", "node", "rank", "seq"})

    time: Timestamp = 0.0
    """When it happened, by the clock of the machine that tells it."""
    node: int = 0
    """The node that it happened on, from 0."""
    rank: int = -1
    """The process that tells it, from 0; -1: the node itself."""
    seq: Optional[int] = None
    """Grows from event to event of a rank: the clock in nanoseconds, nudged so that none comes twice."""

    def __init_subclass__(cls, type: str = "", writer: str = PROGRAM, requires: str = "") -> None:
        super().__init_subclass__()
        cls.TYPE, cls.WRITER, cls.REQUIRED = type, writer, frozenset(requires.split())
        if type:
            EVENT_TYPES[type] = cls

    @property
    def type(self) -> str:
        """Its kind, as JSON has it."""
        return self.TYPE

    def fields(self) -> dict[str, Any]:
        """What was said, without the type."""
        return super().to_json()

    def to_json(self) -> dict[str, Any]:
        """What was said, as a JSON object."""
        return {"type": self.type, **self.fields()}
