"""What the ranks print, gathered: one named pipe per rank in, one stream of whole, marked lines out.

A line of a rank leaves as `[rank 3] text`, one of the launcher as `[node 0] text`, an event as it is. Each is
written in one go, so that ranks never tear each other's lines.
"""

from __future__ import annotations

import json
import os
import selectors
from pathlib import Path
from typing import Any, Callable

from cloudtrain_job import MARKER

_MARKER = MARKER.encode()
LAUNCHERS_OWN = ("node_started", "node_ended", "restarted")
"""Events that only the launcher tells; a rank that prints one has printed text."""

_LONGEST = 64 * 1024
"""Bytes after which an unfinished line is passed on as it is."""


class Streams:
    """The pipes of one node's ranks. `on_event` sees every event that passes through."""

    def __init__(self, folder: Path, processes: int, on_event: Callable[[dict[str, Any]], None]) -> None:
        self._on_event = on_event
        self._selector = selectors.DefaultSelector()
        self._unfinished: dict[int, bytes] = {}
        self._labels: dict[int, str] = {}
        for local_rank in range(processes):
            path = folder / f"rank-{local_rank}"
            os.mkfifo(path, 0o600)
            # Read and write: so the pipe never reports its end while ranks come and go.
            self._add(os.open(path, os.O_RDWR | os.O_NONBLOCK), f"local rank {local_rank}")

    def add_torchrun(self, fd: int) -> None:
        """Gather what torchrun itself prints as well."""
        os.set_blocking(fd, False)
        self._add(fd, "torchrun")

    def add_wakeup(self, fd: int) -> None:
        """A descriptor that only ends the waiting."""
        self._selector.register(fd, selectors.EVENT_READ, None)

    def pump(self, timeout: float) -> None:
        """Pass on what has arrived; wait at most `timeout` seconds for something to arrive."""
        for key, _ in self._selector.select(timeout):
            if key.data is None:
                os.read(key.fd, 4096)
            else:
                self._read(key.fd)

    def drain(self) -> None:
        """Pass on all that is left, unfinished lines included."""
        for fd in self._labels:
            while self._read(fd):
                pass
        for fd, rest in self._unfinished.items():
            if rest:
                self._line(fd, rest)
        self._unfinished = dict.fromkeys(self._unfinished, b"")

    def _add(self, fd: int, label: str) -> None:
        self._labels[fd], self._unfinished[fd] = label, b""
        self._selector.register(fd, selectors.EVENT_READ, label)

    def _read(self, fd: int) -> bool:
        try:
            chunk = os.read(fd, _LONGEST)
        except BlockingIOError:
            return False
        if not chunk:
            if fd in self._selector.get_map():
                self._selector.unregister(fd)
            return False
        *lines, rest = (self._unfinished[fd] + chunk).split(b"\n")
        for line in lines:
            self._line(fd, line)
        if len(rest) > _LONGEST:
            self._line(fd, rest)
            rest = b""
        self._unfinished[fd] = rest
        return True

    def _line(self, fd: int, line: bytes) -> None:
        # An event may follow text that had no newline yet: the line is both.
        said, marker, rest = line.partition(_MARKER)
        event = _parse(rest) if marker else None
        if event is not None and event["type"] not in LAUNCHERS_OWN:
            if event["type"] == "rank_started":
                self._labels[fd] = f"rank {event['rank']}"
            if said:
                self._line(fd, said)
            self._on_event(event)
            write_line(_MARKER + rest)
            return
        # A progress bar redraws its line by carriage returns: what stands there at the end is what one saw.
        seen = line.rstrip(b"\r").rpartition(b"\r")[2]
        write_line(b"[" + self._labels[fd].encode() + b"] " + seen)


def write_line(line: bytes) -> None:
    """One whole line on standard output; a reader that is gone is no reason to stop training."""
    data = memoryview(line + b"\n")
    try:
        while data:
            data = data[os.write(1, data) :]
    except BrokenPipeError:
        pass


_NEEDS: dict[str, dict[str, Any]] = {
    "rank_started": {"rank": int, "local_rank": int, "attempt": int, "time": (int, float)},
    "rank_ended": {"rank": int, "exitcode": int},
    "rank_failed": {"local_rank": int, "exitcode": int, "time": (int, float)},
    "error": {"rank": int, "time": (int, float), "exception": str, "message": str},
}
"""What we rely on in the events that we act on; any program may print a line that looks like one."""


def _parse(text: bytes) -> dict[str, Any] | None:
    """The event in a line, None when it is none of the kind that it says."""
    try:
        event = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(event, dict) or not isinstance(event.get("type"), str):
        return None
    needs = _NEEDS.get(event["type"], {})
    return event if all(isinstance(event.get(name), kind) for name, kind in needs.items()) else None
