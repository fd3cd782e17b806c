"""The run folders: created once, documents written once, events appended under a lock.

runs/digits-k2x9/   spec.yaml  plan.json  request.json               written once
                    events.jsonl                                     appended only
                    logs/  model/  output/  checkpoints/             what the job left
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from cloudtrain.errors import CloudtrainError, RunExists, RunNotFound, StorageError

_LETTERS = "23456789abcdefghjkmnpqrstvwxyz"
"""What is easily told apart when read aloud or copied by hand."""

SUBMIT_LOCK = "submit.lock"

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
        first: Mapping[str, Any] | None = None,
        held: list[int] | None = None,
    ) -> RunFolder:
        """A new run folder with its documents and its first event, whole or not at all, and on disk.

        `held` gets the open file of a lock that says the run is being submitted, from the moment in which the folder
        can be seen until the file is closed. RunExists when the id is taken.
        """
        folder = RunFolder(self.runs_dir / run_id)
        draft = self.runs_dir / f".{run_id}.{os.urandom(4).hex()}"
        with storing(folder.path):
            draft.mkdir(parents=True)
            try:
                for name, text in documents.items():
                    (draft / name).write_bytes(_encoded(text))
                (draft / "logs").mkdir()
                if held is not None:
                    held.append(os.open(draft / SUBMIT_LOCK, os.O_RDWR | os.O_CREAT, 0o644))
                    fcntl.flock(held[-1], fcntl.LOCK_EX)
                if first is not None:
                    RunFolder(draft).append(first, durable=True)
                self._forget(run_id)
                draft.rename(folder.path)
            except OSError as error:
                _remove(draft)
                if error.errno in (errno.ENOTEMPTY, errno.EEXIST):
                    hint = f"cloudtrain status {run_id}"
                    raise RunExists(f"run {run_id} exists already; nothing was started", hint=hint) from None
                raise
        return folder

    def _forget(self, run_id: str) -> None:
        """Drop the index when it still speaks of a run of that id, whose folder was removed: it is made anew."""
        index = self.data_dir / "index.jsonl"
        with suppress(OSError):
            if f'"run":"{run_id}"'.encode() in index.read_bytes() and not (self.runs_dir / run_id).exists():
                index.unlink()

    def ids(self) -> list[str]:
        """All run ids, in no order."""
        try:
            with os.scandir(self.runs_dir) as entries:
                return [entry.name for entry in entries if not entry.name.startswith(".") and entry.is_dir()]
        except FileNotFoundError:
            return []
        except OSError as error:
            raise StorageError(f"{self.runs_dir}: {error.strerror}", hint=_DATA_DIR_HINT) from None

    def open(self, name: str) -> RunFolder:
        """The run of that id, of that unique beginning, or the `last` one. RunNotFound otherwise."""
        ids = self.ids()
        if not ids:
            raise RunNotFound(f"there are no runs in {self.runs_dir}", hint="cloudtrain submit starts one")
        if name == "last":
            return RunFolder(self.runs_dir / max(ids, key=self._created))
        matches = [name] if name in ids else sorted(run_id for run_id in ids if name and run_id.startswith(name))
        if len(matches) == 1:
            return RunFolder(self.runs_dir / matches[0])
        if matches:
            shown = ", ".join(matches[:5]) + (", …" if len(matches) > 5 else "")
            raise RunNotFound(f"{name!r} fits {len(matches)} runs: {shown}", hint="give more letters of the id")
        from difflib import get_close_matches

        close = get_close_matches(name, ids, n=1)
        raise RunNotFound(
            f"there is no run {name!r}" + (f" (did you mean {close[0]!r}?)" if close else ""),
            hint="cloudtrain list shows all runs",
        )

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

    def document(self, name: str) -> dict[str, Any]:
        """One of the JSON documents written at the run's birth."""
        try:
            document = json.loads((self.path / name).read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            message = f"run {self.run_id}: {name} cannot be read: {error}"
            raise StorageError(message, hint="the run's folder was changed by hand, or its disk failed") from None
        return document  # type: ignore[no-any-return]

    def is_being_submitted(self) -> bool:
        """Whether the process that submits the run lives: the kernel lets go of its lock when it dies."""
        try:
            file = os.open(self.path / SUBMIT_LOCK, os.O_RDONLY)
        except OSError:
            return False
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(file)
        return False

    def append(self, *events: Mapping[str, Any], durable: bool = False) -> None:
        """Append events, whole lines under a lock. `durable`: on disk before this returns."""
        lines = "".join(json.dumps(event, ensure_ascii=False, separators=(",", ":")) + "\n" for event in events)
        with storing(self.events_file):
            file = os.open(self.events_file, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o644)
            try:
                fcntl.flock(file, fcntl.LOCK_EX)
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

    def events(self) -> list[dict[str, Any]]:
        """All events so far, in the order they were appended."""
        return list(parse_events(self._read_events(0)[0]))

    def events_since(self, offset: int) -> tuple[list[dict[str, Any]], int]:
        """The events appended after a byte offset, and the next offset."""
        data, offset = self._read_events(offset)
        return list(parse_events(data)), offset

    def last_event(self, kind: str) -> dict[str, Any] | None:
        """The latest event of a kind; looked for from the end, so that a long history costs nothing."""
        size = self.events_file.stat().st_size if self.events_file.exists() else 0
        reach = 1 << 16
        while True:
            start = max(0, size - reach)
            data, _ = self._read_events(start)
            whole = data if start == 0 else data[data.find(b"\n") + 1 :]
            found = [event for event in parse_events(whole) if event["type"] == kind]
            if found or start == 0:
                return found[-1] if found else None
            reach *= 8

    def _read_events(self, offset: int) -> tuple[bytes, int]:
        try:
            with self.events_file.open("rb") as file:
                file.seek(offset)
                data = file.read()
        except FileNotFoundError:
            return b"", offset
        except OSError as error:
            raise StorageError(f"{self.events_file}: cannot be read: {error.strerror}") from None
        whole = data[: data.rfind(b"\n") + 1]
        return whole, offset + len(whole)


def parse_events(data: bytes) -> Iterator[dict[str, Any]]:
    """The events in whole lines; a torn or foreign line is passed over."""
    for line in data.splitlines():
        try:
            event = json.loads(line)
        except ValueError:
            continue
        if isinstance(event, dict) and isinstance(event.get("type"), str) and _is_time(event.get("time", 0)):
            yield event


def _is_time(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


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
