"""The run folders: created once, documents written once, events appended under a lock.

runs/digits-k2x9/   spec.yaml  plan.json  request.json               written once
                    events.jsonl                                     appended only
                    logs/  model/  output/  checkpoints/             what the job left
"""

from __future__ import annotations

import errno
import json
import math
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

from cloudtrain.errors import CloudtrainError, RunExists, RunNotFound, StorageError
from cloudtrain.issues import did_you_mean
from cloudtrain.runs.blocks import end_of_lines, lines_back, lines_from, open_file, read_file
from cloudtrain.runs.events import Event, parse
from cloudtrain.runs.identity import ProcessIdentity
from cloudtrain.runs.locks import is_held, take
from cloudtrain.runs.private import FILE, private, private_folder, tighten

_LETTERS = "23456789abcdefghjkmnpqrstvwxyz"
"""What is easily told apart when read aloud or copied by hand."""

SUBMIT_LOCK = "submit.lock"

FAR_SUBMIT_SECONDS = 3600
"""So long may a submission take whose process cannot be seen from here: large sources and images are sent first."""

LEFTOVERS = "leftovers"
"""The folder of the data folder that names the runs with something left to be removed outside of their own folders."""

MAX_EVENT_BYTES = 1 << 24
"""No event of ours is longer."""

E = TypeVar("E", bound=Event)

_MISSING = object()
_DAMAGED_HINT = "the run's folder was changed by hand, or its disk failed"
_DATA_DIR_HINT = "set CLOUDTRAIN_DATA_DIR to a folder that can be written"


class RunStore:
    """All runs below one data folder."""

    def __init__(self, data_dir: Path) -> None:
        self.data_dir = data_dir
        self.runs_dir = data_dir / "runs"

    def new_id(self, name: str) -> str:
        """A run id nobody has yet: the job's name and four letters, `digits-k2x9`."""
        while True:
            run_id = f"{name}-{''.join(_LETTERS[byte % len(_LETTERS)] for byte in os.urandom(4))}"
            if not (self.runs_dir / run_id).exists():
                return run_id

    def create(
        self,
        run_id: str,
        documents: Mapping[str, str],
        first: Event | Mapping[str, Any] | None = None,
        held: list[int] | None = None,
    ) -> RunFolder:
        """A new run folder with its documents and its first event, whole or not at all, and on disk.

        `held` gets the open file of a lock that says the run is being submitted, from the moment in which the folder
        can be seen until the file is closed. RunExists when the id is taken.
        """
        folder = RunFolder(self.runs_dir / run_id)
        draft = self.runs_dir / f".{run_id}.{os.urandom(4).hex()}"
        with storing(folder.path):
            private_folder(draft)
            tighten(self.data_dir)
            try:
                for name, text in documents.items():
                    with open(draft / name, "wb", opener=private) as file:
                        file.write(_encoded(text))
                private_folder(draft / "logs")
                if held is not None:
                    held.append(os.open(draft / SUBMIT_LOCK, os.O_RDWR | os.O_CREAT, FILE))
                    take(held[-1])
                    os.write(held[-1], json.dumps(ProcessIdentity.of(os.getpid()).to_json()).encode())
                if first is not None:
                    RunFolder(draft).append(first, durable=True)
                self._forget(run_id)
                draft.rename(folder.path)
            except OSError as error:
                _remove(draft)
                if error.errno in (errno.ENOTEMPTY, errno.EEXIST):
                    hint = f"cloudtrain status {run_id}"
                    raise RunExists(f"run {run_id} exists already", hint=hint) from None
                raise
        return folder

    def _forget(self, run_id: str) -> None:
        """Drop the index when it still speaks of a run of that id, whose folder was removed: it is made anew."""
        index = self.data_dir / "index.jsonl"
        with suppress(OSError):
            if f'"run":"{run_id}"'.encode() in read_file(index) and not (self.runs_dir / run_id).exists():
                index.unlink()

    def ids(self) -> list[str]:
        """All run ids, in no order."""
        tighten(self.data_dir)
        try:
            with os.scandir(self.runs_dir) as entries:
                return [entry.name for entry in entries if not entry.name.startswith(".") and entry.is_dir()]
        except FileNotFoundError:
            return []
        except OSError as error:
            raise StorageError(f"{self.runs_dir}: {error.strerror}", hint=_DATA_DIR_HINT) from None

    def with_leftovers(self) -> frozenset[str]:
        """Runs that may have left something outside of their folders, which their provider removes at the next look."""
        try:
            return frozenset(path.name for path in (self.data_dir / LEFTOVERS).iterdir())
        except OSError:
            return frozenset()

    def open(self, name: str) -> RunFolder:
        """The run of that id or, of those that this machine started, the one of that beginning, or the `last` one.

        RunNotFound otherwise: a run of another machine, which a list has brought here, is meant by its whole id only.
        """
        ids = self.ids()
        if not ids:
            raise RunNotFound(f"there are no runs in {self.runs_dir}", hint="cloudtrain submit starts one")
        if name == "last":
            newest = (RunFolder(self.runs_dir / run_id) for run_id in sorted(ids, key=self._created, reverse=True))
            mine = next((folder for folder in newest if not folder.is_adopted()), None)
            if mine is None:
                raise RunNotFound("this machine has started no run", hint="cloudtrain list shows those of others")
            return mine
        fitting = [name] if name in ids else sorted(run_id for run_id in ids if name and run_id.startswith(name))
        matches = [run_id for run_id in fitting if run_id == name or not RunFolder(self.runs_dir / run_id).is_adopted()]
        if len(matches) == 1:
            return RunFolder(self.runs_dir / matches[0])
        if matches:
            shown = ", ".join(matches[:5]) + (", …" if len(matches) > 5 else "")
            raise RunNotFound(f"{name!r} fits {len(matches)} runs: {shown}", hint="give more letters of the id")
        if fitting:
            message = f"{name!r} fits runs of other machines only: {', '.join(fitting[:5])}"
            raise RunNotFound(message, hint="a run that this machine has not started is meant by its whole id")
        raise RunNotFound(f"there is no run {name!r}{did_you_mean(name, ids)}", hint="cloudtrain list shows all runs")

    def _created(self, run_id: str) -> float:
        # Documents are written once, at the run's birth; the folder's own time moves on.
        try:
            return (self.runs_dir / run_id / "plan.json").stat().st_mtime_ns
        except OSError:
            return 0


class RunFolder:
    """One run on disk."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.run_id = path.name
        self.events_file = path / "events.jsonl"

    def document(self, name: str, needed: Mapping[str, type | tuple[type, ...]] | None = None) -> dict[str, Any]:
        """One of the JSON documents written at the run's birth; `needed`: what it must hold, by dotted paths.

        StorageError when it cannot be read, or is not what was written.
        """
        try:
            document = json.loads(self.text(name))
        except (ValueError, RecursionError) as error:
            raise self.damaged(f"{name} cannot be read: {error}") from None
        if not isinstance(document, dict):
            raise self.damaged(f"{name} cannot be read: it holds no mapping")
        for path, kind in (needed or {}).items():
            value: Any = document
            for key in path.split("."):
                value = value.get(key, _MISSING) if isinstance(value, dict) else _MISSING
            if not isinstance(value, kind):
                raise self.damaged(f"{name} cannot be read: it does not say {path}")
        return document

    def text(self, name: str) -> str:
        """One of the documents as it was written. StorageError when it cannot be read."""
        try:
            return read_file(self.path / name).decode("utf-8")
        except OSError as error:
            raise self.damaged(f"{name} cannot be read: {error.strerror or error}") from None
        except ValueError as error:
            raise self.damaged(f"{name} cannot be read: {error}") from None

    def damaged(self, what: str) -> StorageError:
        """The error that says that the run's folder is not as it was written."""
        return StorageError(f"run {self.run_id}: {what}", hint=_DAMAGED_HINT)

    def is_adopted(self) -> bool:
        """Whether another machine started it. A plan that cannot be read is one of this machine's."""
        with suppress(StorageError):
            return "adopted" in self.document("plan.json")
        return False

    def is_being_submitted(self) -> bool:
        """Whether the process that submits the run lives: the kernel lets go of its lock when it dies.

        A submission of another machine, whose lock may not be seen here, counts as going on for a while: to call it
        dead would be to call nothing what it is about to start.
        """
        held = is_held(self.path / SUBMIT_LOCK)
        if held:
            return True
        who, age = self._submitter()
        if who is None or who.is_of_an_earlier_boot():
            return False
        if held is False and (who.is_near() or who.is_of_this_kernel()):
            return False
        return who.lives() is not False and age < FAR_SUBMIT_SECONDS

    def _submitter(self) -> tuple[ProcessIdentity | None, float]:
        """Who submits, or has submitted, the run; and how many seconds ago it began to."""
        path = self.path / SUBMIT_LOCK
        try:
            who = ProcessIdentity.from_json(json.loads(read_file(path)))
            return who, time.time() - path.stat().st_mtime
        except (OSError, ValueError, RecursionError):
            return None, 0.0

    def append(self, *events: Event | Mapping[str, Any], durable: bool = False) -> None:
        """Append events, whole lines under a lock. `durable`: on disk before this returns."""
        documents = (event.to_json() if isinstance(event, Event) else event for event in events)
        lines = "".join(strict_json(document, separators=(",", ":")) + "\n" for document in documents)
        with storing(self.events_file):
            file = os.open(self.events_file, os.O_RDWR | os.O_APPEND | os.O_CREAT, FILE)
            try:
                take(file)
                size = os.fstat(file).st_size
                # A writer that died in mid-line leaves a stump: it must not swallow the next event.
                torn = size > 0 and os.pread(file, 1, size - 1) != b"\n"
                data = (b"\n" if torn else b"") + _encoded(lines)
                if os.write(file, data) < len(data):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                if durable:
                    os.fsync(file)
            finally:
                os.close(file)

    def events(self) -> list[Event]:
        """All events so far, in the order they were appended."""
        return list(self.each_event())

    def each_event(self) -> Iterator[Event]:
        """The same one by one: a history of any length needs no more memory than its longest event."""
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

    def events_from(self, offset: int) -> Iterator[tuple[Event | None, int]]:
        """The events appended after a byte offset, each with the offset behind it; None for a line that is none.

        StorageError when they cannot be read.
        """
        try:
            with open_file(self.events_file) as file:
                for line, behind in lines_from(file, offset, MAX_EVENT_BYTES):
                    yield parse(line) if line else None, behind
        except FileNotFoundError:
            return
        except OSError as error:
            raise self._unreadable(error) from None

    def last_event(self, kind: type[E]) -> E | None:
        """The latest event of a class, None where there is none; looked for from the end of the file.

        StorageError when they cannot be read.
        """
        try:
            with open_file(self.events_file) as file:
                found = map(parse, lines_back(file, end_of_lines(file), MAX_EVENT_BYTES))
                return next((event for event in found if isinstance(event, kind)), None)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise self._unreadable(error) from None

    def _unreadable(self, error: OSError) -> StorageError:
        return StorageError(f"{self.events_file}: cannot be read: {error.strerror or error}", hint=_DAMAGED_HINT)


def strict_json(value: object, **options: Any) -> str:
    """JSON as every reader knows it: NaN and infinities, which it lacks, become null (RFC 8259, section 6)."""
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False, **options)
    except ValueError:
        return json.dumps(finite(value), ensure_ascii=False, allow_nan=False, **options)


def finite(value: Any) -> Any:
    """The same, with None for every float that is not a finite number."""
    if isinstance(value, Mapping):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def as_text(document: object) -> str:
    """A JSON document as the run folder keeps it: for people too."""
    return json.dumps(document, indent=2, ensure_ascii=False) + "\n"


@contextmanager
def storing(path: Path, hint: str = _DATA_DIR_HINT) -> Iterator[None]:
    """Turn the disk's refusals into StorageError; `hint`: where else one could write."""
    try:
        yield
    except CloudtrainError:
        raise
    except OSError as error:
        where = error.filename or path
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            hint = f"free some space there, or {hint}"
        raise StorageError(f"{where}: {error.strerror or error}", hint=hint) from None


def _encoded(text: str) -> bytes:
    # Half a surrogate pair, which JSON may hold and UTF-8 may not, stays the escape that JSON has for it.
    return text.encode("utf-8", "backslashreplace")


def _remove(folder: Path) -> None:
    import shutil

    shutil.rmtree(folder, ignore_errors=True)
