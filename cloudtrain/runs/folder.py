"""A run on disk: documents written once, events only appended."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

from cloudtrain.errors import StorageError
from cloudtrain.runs.files import (
    append_lines,
    end_of_lines,
    read_lines,
    read_lines_backward,
    strict_json,
)
from cloudtrain.version import __version__
from cloudtrain_wire.bounded_files import open_regular_file, read_regular_file
from cloudtrain_wire.events import Event, parse
from cloudtrain_wire.file_locks import is_locked
from cloudtrain_wire.process_identity import ProcessIdentity

PLAN = "plan.json"
REQUEST = "request.json"
JOB = "job.json"
SUBMIT_LOCK = "submit.lock"

REMOTE_SUBMIT_SECONDS = 3600
"""Maximum duration of a submission on another machine, with large uploads before the start."""

MOVE_SECONDS = 10
"""Longest time on Windows until a new run folder, which moves without open files, is locked."""

MAX_EVENT_BYTES = 1 << 24
"""Maximum length of an event."""

E = TypeVar("E", bound=Event)

_MISSING = object()
_DAMAGED_HINT = "the run's folder was changed by hand, or its disk failed"


_LETTERS = "23456789abcdefghjkmnpqrstvwxyz"
"""Letters and digits that are not confused when read aloud or copied by hand."""


def new_run_id(data_dir: Path, name: str) -> str:
    """Return an unused run id: the job's name and four random characters, `digits-k2x9`."""
    while True:
        run_id = f"{name}-{''.join(_LETTERS[byte % len(_LETTERS)] for byte in os.urandom(4))}"
        if not os.path.lexists(data_dir / "runs" / run_id):
            return run_id


class RunFolder:
    """A run on disk."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.run_id = path.name
        self.events_file = path / "events.jsonl"

    def document(
        self, name: str, required: Mapping[str, type | tuple[type, ...]] | None = None
    ) -> dict[str, Any]:
        """Return a JSON document of the submit. Raise StorageError if it is damaged.

        `required`: types of required values by dotted path.
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
                if isinstance(value, dict):
                    value = value.get(key, _MISSING)
                else:
                    value = _MISSING

            if not isinstance(value, kind):
                raise self.damaged(f"{name} cannot be read: it does not say {path}")

        return document

    def text(self, name: str) -> str:
        """Return a document as text. Raise StorageError if it cannot be read."""
        try:
            return read_regular_file(self.path / name).decode("utf-8")
        except OSError as error:
            raise self.damaged(f"{name} cannot be read: {error.strerror or error}") from None
        except ValueError as error:
            raise self.damaged(f"{name} cannot be read: {error}") from None

    def damaged(self, problem: str) -> StorageError:
        """Return the error for a run folder that is damaged, or of another version."""
        hint = _DAMAGED_HINT
        version = self._version()
        if version != __version__:
            hint = f"cloudtrain {version} made it, this is {__version__}: use that one to read it"

        return StorageError(f"run {self.run_id}: {problem}", hint=hint)

    def _version(self) -> str:
        """Return the version in the plan; this one if the plan cannot be read."""
        try:
            plan = json.loads(read_regular_file(self.path / PLAN))
        except (OSError, ValueError, RecursionError):
            return __version__

        if not isinstance(plan, dict) or not plan:
            return __version__

        return str(plan.get("version") or "of an earlier version")

    def is_being_submitted(self) -> bool:
        """Return whether the submitting process is alive and holds its lock.

        The lock of a process on another machine may be invisible here. Its submission counts as
        alive for REMOTE_SUBMIT_SECONDS, because it may be about to start the job.
        """
        locked = is_locked(self.path / SUBMIT_LOCK)
        if locked:
            return True

        submitter, age = self._submitter()
        if submitter is None or submitter.is_from_earlier_boot():
            return False
        is_moved = sys.platform != "win32" or age > MOVE_SECONDS
        is_of_here = submitter.shares_pid_namespace() or submitter.shares_kernel()
        if locked is False and is_of_here and is_moved:
            return False

        return submitter.is_alive() is not False and age < REMOTE_SUBMIT_SECONDS

    def was_submitted_by_a_dead_process(self) -> bool:
        """Return whether the submitting process is known and dead.

        A living one may have started the job without recording it on a full disk.
        """
        submitter = self._submitter()[0]
        is_gone = submitter is not None and submitter.is_alive() is not True
        return is_gone and not self.is_being_submitted()

    def _submitter(self) -> tuple[ProcessIdentity | None, float]:
        """Return the submitting process and its age in seconds."""
        path = self.path / SUBMIT_LOCK
        try:
            submitter = ProcessIdentity.from_json(json.loads(read_regular_file(path)))
            return submitter, time.time() - path.stat().st_mtime
        except (OSError, ValueError, RecursionError):
            return None, 0.0

    def append(self, *events: Event, durable: bool = False) -> None:
        """Append events under a lock. Raise StorageError if the disk refuses.

        `durable`: flush to the disk before returning.
        """
        lines = [strict_json(event.to_json(), separators=(",", ":")) for event in events]
        text = "".join(f"{line}\n" for line in lines)
        append_lines(self.events_file, text, durable=durable)

    def events(self) -> list[Event]:
        """Return all events in order. Raise StorageError if they cannot be read."""
        return list(self.each_event())

    def each_event(self) -> Iterator[Event]:
        """Yield all events one by one, in memory for one event."""
        return (event for event, _ in self.events_from(0) if event is not None)

    def events_since(self, offset: int, max_bytes: int | None = None) -> tuple[list[Event], int]:
        """Return about `max_bytes` of events after a byte offset, and the next offset."""
        events_read = []
        begin = offset
        for event, offset in self.events_from(begin):
            if event is not None:
                events_read.append(event)
            if max_bytes is not None and offset - begin >= max_bytes:
                break

        return events_read, offset

    def events_end(self) -> int:
        """Return the byte offset after the last event, or 0. May raise StorageError."""
        try:
            with open_regular_file(self.events_file) as file:
                return end_of_lines(file)
        except FileNotFoundError:
            return 0
        except OSError as error:
            raise self._unreadable(error) from None

    def events_from(self, offset: int) -> Iterator[tuple[Event | None, int]]:
        """Yield the events after a byte offset, each with its end offset; None for a damaged line.

        Raise StorageError if they cannot be read.
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
        """Return the last event of a class, or None. May raise StorageError."""
        try:
            with open_regular_file(self.events_file) as file:
                lines = read_lines_backward(file, end_of_lines(file), MAX_EVENT_BYTES)
                for event in map(parse, lines):
                    if isinstance(event, kind):
                        return event
        except FileNotFoundError:
            return None
        except OSError as error:
            raise self._unreadable(error) from None

        return None

    def _unreadable(self, error: OSError) -> StorageError:
        return StorageError(
            f"{self.events_file}: cannot be read: {error.strerror or error}", hint=_DAMAGED_HINT
        )
