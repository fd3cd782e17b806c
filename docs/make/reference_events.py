"""The reference of events, made from their classes: docstrings, annotations, and the text under
each field.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator

from cloudtrain_wire import events
from cloudtrain_wire.events import Event, Record
from reference_page import page, table

WRITERS = {
    events.CLIENT: (
        "Events of the client",
        (
            "Written by cloudtrain on the machine that submitted the run, and by the supervisor of"
            " a run on that machine. The same line printed by a job is text."
        ),
    ),
    events.LAUNCHER: (
        "Events of a node's launcher",
        "Written by the launcher alone. The same line printed by a program of the job is text.",
    ),
    events.RANK: (
        "Events of a rank",
        (
            "Written and signed by the process that the launcher started for a rank, and by the"
            " launcher. The same line printed by a program is text."
        ),
    ),
    events.PROGRAM: (
        "Events of programs",
        (
            "Any program of the job may write these, with `cloudtrain_job`; most come from the"
            ' shared trainer. A program may also write events of other types, `emit("my_type",'
            " any=1)`: they are kept with the run."
        ),
    ),
}


def events_page() -> str:
    """Return the page of events, grouped by their writer."""
    parts = [
        (
            "A run is a list of events, in `events.jsonl` in its folder: one JSON object a line,"
            " only ever appended. A job writes an event as a line of its output, `::cloudtrain::"
            ' {"type": …}`. An event with a missing or invalid required field is text; any'
            " other invalid field is left out. Unknown types and fields are kept."
            "\n"
        ),
        "## Every event\n",
        "The `type`, and:\n",
        _fields(Event, Event),
        "A cause and a cost have these fields:\n",
    ]
    for record in (events.Cause, events.Billing):
        parts += [
            f"### {record.__name__.lower()}\n",
            f"{inspect.getdoc(record)}\n",
            _fields(record, record),
        ]
    for writer, (title, meaning) in WRITERS.items():
        parts += [f"## {title}\n", f"{meaning}\n"]
        for kind, event in events.EVENT_TYPES.items():
            if writer == event.WRITER:
                parts += _described(kind, event)
    return page("Events", "\n".join(parts))


def _described(kind: str, event: type[Event]) -> Iterator[str]:
    yield f"### {kind}\n"
    yield f"{inspect.getdoc(event)}\n"
    stamp = [f"`{name}`" for name in Event.field_types() if name in event.REQUIRED]
    if stamp:
        yield (
            "Requires"
            f" {' and '.join([', '.join(stamp[:-1]), stamp[-1]] if stamp[:-1] else stamp)}.\n"
        )
    if issubclass(event, events.Cause):
        return
    rows = _fields(event, event)
    if rows:
        yield rows


def _fields(kind: type[Record], owner: type[Record]) -> str:
    """The fields that a class declares itself."""
    texts = _texts(owner)
    kinds = kind.field_types()
    required = kind.required_fields()
    rows = [
        (f"`{name}`", kinds[name].description, "yes" if name in required else "", texts[name])
        for name in texts
    ]
    return table(("field", "type", "required", "meaning"), rows) if rows else ""


def _texts(kind: type[Record]) -> dict[str, str]:
    """Text under each field of a class. LookupError without one."""
    body = ast.parse(inspect.getsource(kind)).body[0]
    if not isinstance(body, ast.ClassDef):
        raise LookupError(kind)
    texts = {}
    for field, below in zip(body.body, [*body.body[1:], None], strict=True):
        if (
            not isinstance(field, ast.AnnAssign)
            or not isinstance(field.target, ast.Name)
            or field.target.id.isupper()
        ):
            continue
        if not (isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant)):
            raise LookupError(f"{kind.__name__}.{field.target.id}: nothing says what it means")
        texts[field.target.id] = " ".join(str(below.value.value).split())
    return texts
