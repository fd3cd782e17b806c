"""The one place that writes what was observed of a run, each event and line once, and the state that they add up to."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from cloudtrain.runs.events import Cursor, Event
from cloudtrain.runs.files import FILE_MODE, lock_file, storing
from cloudtrain.runs.fold import fold
from cloudtrain.runs.folder import RunFolder
from cloudtrain.runs.logs import format_timestamp, log_file, split_events
from cloudtrain.runs.observation import LogPart, Observation, Positions
from cloudtrain.runs.state import RunState


class History:
    """One run as its events tell it. `state` is one object, kept up to date in place."""

    def __init__(self, folder: RunFolder) -> None:
        self.folder = folder
        self.state = RunState(run_id=folder.run_id)
        self.damaged_lines = 0
        """Lines among its events that are none: a writer was killed, a disk was full, or somebody has changed them."""
        self._offset = 0

    def read(self) -> RunState:
        """The state by all events that are there now; only those that are new are read."""
        return fold(self.folder.run_id, self._new_events(), self.state)

    def take(self, observations: Iterable[Observation], *, durable: bool = False) -> bool:
        """Write each observation down, and fold it, before the next one is asked for; whether any held an event.

        So who observes sees in the state what the lines that were just read have said. `durable`: events are on disk
        before this returns.
        """
        is_news = False
        for seen in observations:
            is_news |= bool(seen.events)
            if seen.events:
                self.folder.append(*seen.events, durable=durable)
            if seen.lines is not None:
                sync_logs(self.folder, seen.lines)
            self.read()
        return is_news

    def record(self, seen: Observation) -> None:
        """Write one observation down, on disk before this returns: see `Record`."""
        self.take([seen], durable=True)

    def _new_events(self) -> Iterator[Event]:
        for event, offset in self.folder.events_from(self._offset):
            self._offset = offset
            if event is not None:
                yield event
            else:
                self.damaged_lines += 1


def sync_logs(run: RunFolder, read: Callable[[Positions], Iterable[LogPart]]) -> bool:
    """Add what `read` brings to the run's log files and events, a part at a time. False: another process does so."""
    with log_reader_lock(run) as alone:
        if alone:
            files = LogSync(run)
            for part in read(files.positions):
                files.add(part)
    return alone


class LogSync:
    """The log files of a run while somebody adds to them.

    How far each log was read is an event, appended together with the events among those lines; log lines beyond it,
    of a reader that was killed in between, are cut off again.
    """

    def __init__(self, run: RunFolder) -> None:
        self._run = run
        last = run.last_event(Cursor)
        self.positions: dict[str, dict[str, Any]] = {
            name: dict(at) for name, at in ((last and last.streams) or {}).items()
        }
        """How far each log was read, by its name."""
        self._sizes: dict[str, int] = dict((last and last.sizes) or {})

    def add(self, part: LogPart) -> None:
        """Add lines of a node, and remember how far their log was read."""
        events: list[Event] = []
        text = bytearray()
        for when, line in part.lines:
            found, output = split_events([line], part.node)
            events += found
            for output_line in output:
                text += format_timestamp(when).encode() + b" " + output_line + b"\n"
        path, size = log_file(self._run.path, part.node), self._sizes.get(str(part.node), 0)
        with storing(path), open(os.open(path, os.O_RDWR | os.O_CREAT, FILE_MODE), "r+b") as file:
            file.truncate(size)
            file.seek(size)
            file.write(text)
        self._sizes[str(part.node)] = size + len(text)
        self.positions[part.stream] = dict(part.position)
        cursor = Cursor(time=time.time(), streams=self.positions, sizes=self._sizes)
        self._run.append(*events, cursor)


@contextmanager
def log_reader_lock(run: RunFolder) -> Iterator[bool]:
    """Whether nobody else is reading the run's logs; nobody else begins meanwhile."""
    path = run.path / "logs" / "reading.lock"
    with storing(path):
        path.parent.mkdir(exist_ok=True)
        file = os.open(path, os.O_RDWR | os.O_CREAT, FILE_MODE)
    try:
        yield lock_file(file, wait=False)
    finally:
        os.close(file)
