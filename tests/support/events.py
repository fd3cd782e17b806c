"""Events as JSON objects, the form of most tests."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from cloudtrain.runs.fold import fold
from cloudtrain.runs.folder import RunFolder
from cloudtrain.runs.state import RunState
from cloudtrain_launcher import events


def as_json(event: events.Event | Mapping[str, Any]) -> dict[str, Any]:
    """Return an event as the JSON object of a run's events.jsonl."""
    return event.to_json() if isinstance(event, events.Event) else dict(event)


def events_of(run: RunFolder) -> list[dict[str, Any]]:
    """All events of a run."""
    return [event.to_json() for event in run.events()]


def fold_json(run_id: str, documents: Iterable[Any], state: RunState | None = None) -> RunState:
    """Return the state of these JSON objects, read back as events; skip others."""
    parsed = (events.from_json(document) for document in documents)
    return fold(run_id, (event for event in parsed if event is not None), state)


def event(type: str, **fields: Any) -> events.Event:
    """An event of that type; of a program, where the type is not one of ours."""
    parsed = events.from_json({"type": type, **fields})
    assert parsed is not None, f"not a valid event: {type} {fields}"
    return parsed
