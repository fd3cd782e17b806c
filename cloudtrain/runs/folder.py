"""One run on disk: documents that are written once, events that are only appended."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

from cloudtrain.bounded_files import open_regular_file, read_regular_file
from cloudtrain.errors import StorageError
from cloudtrain.runs.events import Event, parse
from cloudtrain.runs.files import (
    append_lines,
    end_of_lines,
    read_lines,
    read_lines_backward,
    strict_json,
)
from cloudtrain.runs.identity import ProcessIdentity
from cloudtrain.runs.locks import is_locked

SUBMIT_LOCK = "submit.lock"

REMOTE_SUBMIT_SECONDS = 3600
"""How long a submission on another machine may take: large sources and images are sent before the
start.
"""

MAX_EVENT_BYTES = 1 << 24
"""The longest event that is read."""

E = TypeVar("E", bound=Event)

_MISSING = object()
_DAMAGED_HINT = "the run's folder was changed by hand, or its disk failed"


class RunFolder:
    """One run on disk."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.run_id = path.name
        self.events_file = path / "events.jsonl"

    def document(
        self, name: str, required: Mapping[str, type | tuple[type, ...]] | None = None
    ) -> dict[str, Any]:
        """One of the JSON documents that the submit wrote. `required`: the types of what it must
        hold, by dotted paths.

        StorageError when it cannot be read, or lacks something that is required.
        """
        try:
            document = json.loads(self.text(name))
        except (ValueError, RecursionError) as error:
            raise self.damaged(f"{name} cannot be read: {error}") from None
        if not isinstance(document, dict):
            raise self.damaged(f"{name} cannot be read: it is not a mapping")
        for path, kind in (required or {}).items():
            value: Any = document
            for key in path.split("."):
                value = value.get(key, _MISSING) if isinstance(value, dict) else _MISSING
            if not isinstance(value, kind):
                raise self.damaged(f"{name} cannot be read: it does not say {path}")
        return document

    def text(self, name: str) -> str:
        """One of these documents as text. StorageError when it cannot be read."""
        try:
            return read_regular_file(self.path / name).decode("utf-8")
        except OSError as error:
            raise self.damaged(f"{name} cannot be read: {error.strerror or error}") from None
        except ValueError as error:
            raise self.damaged(f"{name} cannot be read: {error}") from None

    def damaged(self, what: str) -> StorageError:
        """The error that says that the run's folder is not as it was written."""
        return StorageError(f"run {self.run_id}: {what}", hint=_DAMAGED_HINT)

    def is_being_submitted(self) -> bool:
        """Whether the process that submits the run is alive: the kernel releases its lock when it
        dies.

        The lock of a process on another machine may be invisible here. Its submission counts as
        going on for REMOTE_SUBMIT_SECONDS: it may be about to start the job.
        """
        locked = is_locked(self.path / SUBMIT_LOCK)
        if locked:
            return True
        submitter, age = self._submitter()
        if submitter is None or submitter.is_from_earlier_boot():
            return False
        if locked is False and (submitter.shares_pid_namespace() or submitter.shares_kernel()):
            return False
        return submitter.is_alive() is not False and age < REMOTE_SUBMIT_SECONDS

    def was_submitted_by_a_dead_process(self) -> bool:
        """Return whether the process that has submitted the run is known, and does not live any
        more.

        A living one may have started the job without a word of it on a full disk.
        """
        submitter = self._submitter()[0]
        is_gone = submitter is not None and submitter.is_alive() is not True
        return is_gone and not self.is_being_submitted()

    def _submitter(self) -> tuple[ProcessIdentity | None, float]:
        """The process that submits, or has submitted, the run; and how many seconds ago it began."""
        path = self.path / SUBMIT_LOCK
        try:
            submitter = ProcessIdentity.from_json(json.loads(read_regular_file(path)))
            return submitter, time.time() - path.stat().st_mtime
        except (OSError, ValueError, RecursionError):
            return None, 0.0

    def append(self, *events: Event, durable: bool = False) -> None:
        """Append events, one line of JSON each, under a lock. `durable`: flushed to the disk before
        this returns.

        StorageError when the disk refuses.
        """
        lines = "".join(
            strict_json(event.to_json(), separators=(",", ":")) + "\n" for event in events
        )
        append_lines(self.events_file, lines, durable=durable)

    def events(self) -> list[Event]:
        """All events so far, in the order they were appended. StorageError when they cannot be
        read.
        """
        return list(self.each_event())

    def each_event(self) -> Iterator[Event]:
        """All events one by one: memory is needed for the longest event, not for the whole file."""
        return (event for event, _ in self.events_from(0) if event is not None)

    def events_since(self, offset: int, max_bytes: int | None = None) -> tuple[list[Event], int]:
        """The events appended after a byte offset, about `max_bytes` of them, and the next offset."""
        found = []
        begin = offset
        for event, offset in self.events_from(begin):
            if event is not None:
                found.append(event)
            if max_bytes is not None and offset - begin >= max_bytes:
                break
        return found, offset

    def events_end(self) -> int:
        """The byte offset after the last event; 0 where there is none. StorageError when they
        cannot be read.
        """
        try:
            with open_regular_file(self.events_file) as file:
                return end_of_lines(file)
        except FileNotFoundError:
            return 0
        except OSError as error:
            raise self._unreadable(error) from None

    def events_from(self, offset: int) -> Iterator[tuple[Event | None, int]]:
        """The events appended after a byte offset, each with the offset after it; None for a line
        that holds none.

        StorageError when they cannot be read.
        """
        try:
            with open_regular_file(self.events_file) as file:
                for line, behind in read_lines(file, offset, MAX_EVENT_BYTES):
                    yield parse(line) if line else None, behind
        except FileNotFoundError:
            return
        except OSError as error:
            raise self._unreadable(error) from None

    def last_event(self, kind: type[E]) -> E | None:
        """The latest event of a class, None where there is none; looked for from the end of the
        file.

        StorageError when they cannot be read.
        """
        try:
            with open_regular_file(self.events_file) as file:
                found = map(parse, read_lines_backward(file, end_of_lines(file), MAX_EVENT_BYTES))
                return next((event for event in found if isinstance(event, kind)), None)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise self._unreadable(error) from None

    def _unreadable(self, error: OSError) -> StorageError:
        return StorageError(
            f"{self.events_file}: cannot be read: {error.strerror or error}", hint=_DAMAGED_HINT
        )
