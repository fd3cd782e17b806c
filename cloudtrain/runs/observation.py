"""Observations of a run: events and log lines of a provider, written by `History`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from cloudtrain_launcher.events import Event

Positions = Mapping[str, Mapping[str, Any]]
"""Position in each log of a job, by the log's name in its cloud."""


class LogPart(NamedTuple):
    """Lines of one log and the position after them."""

    node: int
    lines: Sequence[tuple[float, bytes]]
    """Unix timestamp and text without line end."""
    stream: str
    """The log's name in its cloud."""
    position: Mapping[str, Any]
    """Position after these lines in the cloud's own form; plain JSON."""


class Observation(NamedTuple):
    """Result of one request to the platform. Events are written first, then each part of lines."""

    events: Sequence[Event] = ()
    """Events that the run folder lacks, in order."""
    lines: Callable[[Positions], Iterable[LogPart]] | None = None
    """Reader of the new part of each log; not called while another process reads."""


Record = Callable[[Observation], None]
"""Writer of an observation to disk and state. May raise StorageError."""
