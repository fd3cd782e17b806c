"""What a provider has observed of a run: events and log lines. The provider returns it, `History`
writes it down.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cloudtrain.runs.events import Event

Positions = Mapping[str, Mapping[str, Any]]
"""How far each log of a job was read, by the log's name in its cloud."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LogPart:
    """Some lines of one log, and the position after them."""

    node: int
    lines: Sequence[tuple[float, bytes]]
    """Each with its time, a Unix timestamp, and without its line end."""
    stream: str
    """The log's name in its cloud."""
    position: Mapping[str, Any]
    """The position after these lines, in the cloud's own terms; plain JSON."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Observation:
    """What one request to the platform has returned. Its events are written first, then its lines,
    a part at a time.
    """

    events: Sequence[Event] = ()
    """Events that the run folder lacks, in order."""
    lines: Callable[[Positions], Iterable[LogPart]] | None = None
    """Reads the new part of each log from its position on. It is not called while another process
    reads them.
    """


Record = Callable[[Observation], None]
"""Writes an observation to the disk and applies it to the run's state before it returns.
StorageError otherwise.
"""
