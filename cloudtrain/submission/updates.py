"""Updates of a run until it has ended, and the wait for it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING

from cloudtrain.runs.logs import BATCH_LINES, LogLine, LogReader
from cloudtrain.runs.state import RunState
from cloudtrain_launcher.events import Event

if TYPE_CHECKING:
    from cloudtrain.submission.monitor import RunMonitor

POLL_SECONDS = 0.05
MAX_POLL_SECONDS = 0.2
"""Seconds between two looks at the run folder, at first and after 10 s."""
EVENT_BATCH_BYTES = 1 << 20
"""Maximum bytes of the events file in an update."""


@dataclass(frozen=True, slots=True)
class Update:
    """Changes of a run since the previous update."""

    state: RunState
    """Current state; the same object in every update."""
    events: list[Event]
    """New events in the order of writing."""
    lines: list[LogLine]
    """New lines of all nodes by time."""
    last_error: str = ""
    """Error of asking the cloud or reading the log, which is retried; empty if none."""


class Wait:
    """Wait for a run from now, for `timeout` seconds or without a limit."""

    def __init__(self, monitor: RunMonitor, timeout: float | None = None) -> None:
        self._monitor = monitor
        self._timeout = timeout
        self._began = time.monotonic()

    def raise_if_over(self) -> None:
        """Raise TimeoutError when the time is over, while the run continues."""
        if self._timeout is not None and time.monotonic() > self._began + self._timeout:
            run = self._monitor.folder.run_id
            state = self._monitor.state.state
            raise TimeoutError(
                f"run {run} is still {state} after {self._timeout:g} s; it continues"
            )

    def pause(self) -> None:
        """Sleep until the next look at the run folder, longer in a long run."""
        time.sleep(min(MAX_POLL_SECONDS, max(POLL_SECONDS, (time.monotonic() - self._began) / 50)))


def updates(monitor: RunMonitor, *, tail: int | None, timeout: float | None) -> Iterator[Update]:
    """Yield the updates of `Run.watch`; same arguments and errors."""
    reader = LogReader(monitor.folder)
    offset = 0
    wait = Wait(monitor, timeout)
    monitor.refresh()
    if tail is not None:
        offset = monitor.folder.events_end()
        # Skipped lines count as read.
        latest = list(islice(reader.read_backward(), max(1, tail)))[:tail]
        yield Update(monitor.state, [], latest[::-1], monitor.last_error)
    while True:
        # Lines first: the event of an error is written before its lines, so never read after them.
        lines = reader.read_batch()
        state = monitor.refresh()
        last_error = monitor.last_error or state.log_error or monitor.unstored
        events, offset = monitor.folder.events_since(offset, EVENT_BATCH_BYTES)
        while events and (following := monitor.folder.events_since(offset, EVENT_BATCH_BYTES))[0]:
            yield Update(state, events, [], last_error)
            events, offset = following
        while state.has_ended and (unread := reader.read_batch()):
            if len(lines) + len(unread) > BATCH_LINES:
                yield Update(state, events, lines, last_error)
                lines = []
                events = []
            lines += unread
        yield Update(state, events, lines, last_error)
        if state.has_ended:
            return
        wait.raise_if_over()
        if not lines:
            wait.pause()
