"""A run's log files as a copy of the logs in a cloud: each line once, whoever is killed in between."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from cloudtrain.runs.events import Cursor, Event
from cloudtrain.runs.locks import take
from cloudtrain.runs.logs import log_file, split_events, stamp
from cloudtrain.runs.observation import LogPart, Positions
from cloudtrain.runs.private import FILE
from cloudtrain.runs.store import RunFolder, storing


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
                text += stamp(when).encode() + b" " + output_line + b"\n"
        path, size = log_file(self._run.path, part.node), self._sizes.get(str(part.node), 0)
        with storing(path), open(os.open(path, os.O_RDWR | os.O_CREAT, FILE), "r+b") as file:
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
        file = os.open(path, os.O_RDWR | os.O_CREAT, FILE)
    try:
        yield take(file, wait=False)
    finally:
        os.close(file)
