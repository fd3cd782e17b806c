"""What is new about a run, look after look until it has ended; and how long somebody waits for
that.
"""

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
"""Between two looks at the run folder while waiting, at first and after 10 s; how often a cloud is
asked is up to its provider.
"""
EVENT_BATCH_BYTES = 1 << 20
"""An update holds about this much of the events file at most."""


@dataclass(frozen=True, slots=True)
class Update:
    """What is new about a run since the update before."""

    state: RunState
    """The state now; the same object in every update."""
    events: list[Event]
    """In the order in which they were written."""
    lines: list[LogLine]
    """Of all nodes, by time."""
    last_error: str = ""
    """Why the cloud could not be asked, or the log not read, this time; it is tried again. Empty
    when all is well.
    """


class Wait:
    """Somebody waits for a run from now on, for `timeout` seconds or, with None, as long as it
    takes.
    """

    def __init__(self, monitor: RunMonitor, timeout: float | None = None) -> None:
        self._monitor = monitor
        self._timeout = timeout
        self._began = time.monotonic()

    def raise_if_over(self) -> None:
        """TimeoutError when the time is over, while the run goes on."""
        if self._timeout is not None and time.monotonic() > self._began + self._timeout:
            run = self._monitor.folder.run_id
            state = self._monitor.state.state
            raise TimeoutError(f"run {run} is still {state} after {self._timeout:g} s; it goes on")

    def pause(self) -> None:
        """Sleep until the next look at the run's folder: longer in a long run, where it matters
        less and costs more.
        """
        time.sleep(min(MAX_POLL_SECONDS, max(POLL_SECONDS, (time.monotonic() - self._began) / 50)))


def updates(monitor: RunMonitor, *, tail: int | None, timeout: float | None) -> Iterator[Update]:
    """The updates of `Run.watch`; the same arguments and errors."""
    reader = LogReader(monitor.folder)
    offset = 0
    wait = Wait(monitor, timeout)
    monitor.refresh()
    if tail is not None:
        offset = monitor.folder.events_end()
        latest = list(islice(reader.read_backward(), max(1, tail)))[
            :tail
        ]  # what is skipped counts as read
        yield Update(monitor.state, [], latest[::-1], monitor.last_error)
    while True:
        # Lines first: the event of an error is written before the lines that show it: it is never
        # read after them.
        lines = reader.read_batch()
        state = monitor.refresh()
        last_error = monitor.last_error or state.log_error or monitor.unstored
        events, offset = monitor.folder.events_since(offset, EVENT_BATCH_BYTES)
        while events and (following := monitor.folder.events_since(offset, EVENT_BATCH_BYTES))[0]:
            yield Update(state, events, [], last_error)
            events, offset = following
        while state.has_ended and (rest := reader.read_batch()):
            if len(lines) + len(rest) > BATCH_LINES:
                yield Update(state, events, lines, last_error)
                lines = []
                events = []
            lines += rest
        yield Update(state, events, lines, last_error)
        if state.has_ended:
            return
        wait.raise_if_over()
        if not lines:
            wait.pause()
