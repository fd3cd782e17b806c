"""What a provider has seen of a run: events, and log lines on their way. A provider tells; only the run writes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cloudtrain.runs import events

Event = events.Event | Mapping[str, Any]
"""An event, or the mapping that `events.from_json` makes one of."""

Positions = Mapping[str, Mapping[str, Any]]
"""How far each of a job's logs was read, by the log's name in its cloud."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LogPart:
    """Some lines of one log, and how far that log is read with them."""

    node: int
    lines: Sequence[tuple[float, bytes]]
    """Each with its time, a Unix timestamp, and without its line end."""
    stream: str
    """The log's name in its cloud."""
    position: Mapping[str, Any]
    """How far it is read, in whatever way that cloud counts; plain JSON."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Observation:
    """What one look has found. Its events are written down first, then its lines are read, a part at a time."""

    events: Sequence[Event] = ()
    """Those that the run folder lacks, in their order."""
    lines: Callable[[Positions], Iterable[LogPart]] | None = None
    """Reads what is new of the logs, beginning where each was left. It is not called while another process reads."""


Record = Callable[[Observation], None]
"""Writes an observation down: when it returns, it is on disk, and the run's state has it. StorageError otherwise."""
