"""Events as JSON objects, in which most tests state what they expect."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cloudtrain.runs import events


def as_json(event: events.Event | Mapping[str, Any]) -> dict[str, Any]:
    """An event as it is written to a run's events.jsonl."""
    return event.to_json() if isinstance(event, events.Event) else dict(event)
