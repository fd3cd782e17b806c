"""Observations of a run: events and log lines of a provider, written by `History`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cloudtrain_launcher.events import Event

Positions = Mapping[str, Mapping[str, Any]]
"""Position in each log of a job, by the log's name in its cloud."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LogPart:
    """Lines of one log and the position after them."""

    node: int
    lines: Sequence[tuple[float, bytes]]
    """Each with its time, a Unix timestamp, and without its line end."""
    stream: str
    """The log's name in its cloud."""
    position: Mapping[str, Any]
    """Position after these lines in the cloud's own form; plain JSON."""


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
"""Writer of an observation to disk and state. May raise StorageError."""
