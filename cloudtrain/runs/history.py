"""Writer of observations of a run: each event and line once, and the resulting state."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from cloudtrain.errors import StorageError
from cloudtrain.runs.files import FILE_MODE, storing
from cloudtrain.runs.fold import fold
from cloudtrain.runs.folder import RunFolder
from cloudtrain.runs.logs import (
    LogPart,
    Observation,
    Positions,
    format_timestamp,
    log_file,
    split_events,
)
from cloudtrain.runs.state import RunState
from cloudtrain_wire.events import Cursor, Event
from cloudtrain_wire.file_locks import acquire


class History:
    """Events of a run and their state. `state` is one object, changed in place."""

    def __init__(self, folder: RunFolder) -> None:
        self.folder = folder
        self.state = RunState(run_id=folder.run_id)
        self.damaged_lines = 0
        """Number of unreadable lines in the events file."""
        self.unstored: StorageError | None = None
        """Error of the last write; None after a successful one."""
        self._offset = 0

    def read(self) -> RunState:
        """Return the state of all events. Read only new ones. May raise StorageError."""
        return fold(self.folder.run_id, self._new_events(), self.state)

    def take(
        self,
        observations: Iterable[Observation],
        *,
        durable: bool = False,
        unstored_ok: bool = False,
    ) -> bool:
        """Write and apply each observation before reading the next. Return whether any had events.

        A provider that yields them one by one sees their events in the state. `durable`: flush
        events to the disk before returning. Raise StorageError if the disk refuses, unless
        `unstored_ok`: then the events count in this process only, `unstored` has the error, and the
        provider repeats them when asked again.
        """
        has_events = False
        for observation in observations:
            has_events |= bool(observation.events)
            if observation.events:
                self._store_events(observation.events, durable, unstored_ok)
            if observation.lines is not None:
                self._store_lines(observation.lines, unstored_ok)

            self.read()

        return has_events

    def _store_events(self, events: Sequence[Event], durable: bool, unstored_ok: bool) -> None:
        try:
            self.folder.append(*events, durable=durable)
        except StorageError as error:
            if not unstored_ok:
                raise
            self.unstored = error
            fold(self.folder.run_id, events, self.state)
        else:
            self.unstored = None

    def _store_lines(
        self, read: Callable[[Positions], Iterable[LogPart]], unstored_ok: bool
    ) -> None:
        try:
            sync_logs(self.folder, read)
        except StorageError as error:
            if not unstored_ok:
                raise
            self.unstored = self.unstored or error

    def record(self, observation: Observation) -> None:
        """Write one observation durably: see `Record`."""
        self.take([observation], durable=True)

    def _new_events(self) -> Iterator[Event]:
        for event, offset in self.folder.events_from(self._offset):
            self._offset = offset
            if event is not None:
                yield event
            else:
                self.damaged_lines += 1


def sync_logs(run: RunFolder, read: Callable[[Positions], Iterable[LogPart]]) -> bool:
    """Append new log parts to files and events. False: another process does it.

    Raise StorageError if the disk refuses.
    """
    with log_reader_lock(run) as is_owner:
        if is_owner:
            files = LogSync(run)
            for part in read(files.positions):
                files.add(part)

    return is_owner


class LogSync:
    """Writer of a run's log files that stores each line once, even if the reader is killed.

    The position in each log is an event, appended together with the events among those lines. Lines
    after the last recorded position come from a killed reader: they are cut off and read again.
    """

    def __init__(self, run: RunFolder) -> None:
        self._run = run
        last = run.last_event(Cursor) or Cursor()
        streams = last.streams or {}
        self.positions: dict[str, dict[str, Any]] = {name: dict(at) for name, at in streams.items()}
        """Position in each log by its name."""
        self._sizes: dict[str, int] = dict(last.sizes or {})

    def add(self, part: LogPart) -> None:
        """Append a node's lines and record the log position. May raise StorageError."""
        events: list[Event] = []
        text = bytearray()
        for when, line in part.lines:
            job_events, output = split_events([line], part.node)
            events += job_events

            for output_line in output:
                text += format_timestamp(when).encode() + b" " + output_line + b"\n"

        path = log_file(self._run.path, part.node)
        size = self._sizes.get(str(part.node), 0)

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
    """Lock the reading of the run's logs; False if it is taken. May raise StorageError."""
    path = run.path / "logs" / "reading.lock"
    with storing(path):
        path.parent.mkdir(exist_ok=True)
        lock = acquire(path, wait=False)

    try:
        yield lock is not None
    finally:
        if lock is not None:
            lock.release()
