"""What the ranks print, gathered: one named pipe per rank in, one stream of whole, marked lines out.

A line of a rank leaves as `[rank 3] text`, one of the launcher as `[node 0] text`, an event as it is. Each is
written in one go, so that ranks never tear each other's lines. Secret values leave masked.
"""

from __future__ import annotations

import json
import os
import selectors
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Callable, Optional

from cloudtrain_job import MARKER, signed_marker
from cloudtrain_launcher.events import PROGRAM, RANK, Event, RankStarted, from_json, parse
from cloudtrain_launcher.masking import masks

_MARKER = MARKER.encode()

_LONGEST = 64 * 1024
"""Bytes after which an unfinished line is passed on as it is."""

UNFINISHED_SECONDS = 10.0
"""How often the state of a line that is still being written is passed on, such as a progress bar's."""


@dataclass
class _Pipe:
    """One pipe and the line that is being written into it."""

    label: str
    local_rank: int
    """-1: torchrun's own."""
    rest: bytes = b""
    shown: bytes = b""
    """Of the unfinished line, what was passed on last."""
    looked: float = 0.0


class Streams:
    """The pipes of one node's ranks. `on_event` sees every event that passes through, `on_text` each rank's lines.

    `key`: what the processes are known by that may tell how a rank fares. The same line without it is text: a program
    may print anything, the log of another job included.
    """

    def __init__(
        self,
        folder: Path,
        processes: int,
        on_event: Callable[[Event], None],
        *,
        key: str,
        on_text: Callable[[int, str], None] = lambda *_: None,
    ) -> None:
        self._on_event, self._on_text = on_event, on_text
        self._signed = signed_marker(key).encode()
        self._selector = selectors.DefaultSelector()
        self._pipes: dict[int, _Pipe] = {}
        for local_rank in range(processes):
            path = folder / f"rank-{local_rank}"
            os.mkfifo(path, 0o600)
            # Read and write: so the pipe never reports its end while ranks come and go.
            self._add(os.open(path, os.O_RDWR | os.O_NONBLOCK), _Pipe(f"local rank {local_rank}", local_rank))

    def add_torchrun(self, fd: int) -> None:
        """Gather what torchrun itself prints as well."""
        os.set_blocking(fd, False)
        self._add(fd, _Pipe("torchrun", -1))

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
        self._show_unfinished(time.monotonic())

    def drain(self) -> None:
        """Pass on all that is left, unfinished lines included."""
        for fd, pipe in self._pipes.items():
            while self._read(fd):
                pass
            if pipe.rest:
                self._line(pipe, pipe.rest)
            pipe.rest = b""

    def _add(self, fd: int, pipe: _Pipe) -> None:
        self._pipes[fd] = pipe
        self._selector.register(fd, selectors.EVENT_READ, pipe.label)

    def _read(self, fd: int) -> bool:
        pipe = self._pipes[fd]
        try:
            chunk = os.read(fd, _LONGEST)
        except BlockingIOError:
            return False
        if not chunk:
            if fd in self._selector.get_map():
                self._selector.unregister(fd)
            return False
        begins = not pipe.rest
        *lines, pipe.rest = (pipe.rest + chunk).split(b"\n")
        for line in lines:
            self._line(pipe, line)
        if lines or begins:
            pipe.shown, pipe.looked = b"", time.monotonic()
        if len(pipe.rest) > _LONGEST:
            pipe.rest = self._shortened(pipe)
        return True

    def _shortened(self, pipe: _Pipe) -> bytes:
        """What stays of a line that is too long to wait for its end: of a progress bar, all that one still sees."""
        state = _visible(pipe.rest)
        if len(state) <= _LONGEST:
            return b"\r" + state
        split = len(pipe.rest) - masks.beginning(pipe.rest)  # a secret is not cut in two
        self._line(pipe, pipe.rest[:split])
        return pipe.rest[split:]

    def _show_unfinished(self, now: float) -> None:
        """Pass on what a line shows that has no end yet, if it is another than the last time."""
        for pipe in self._pipes.values():
            if not pipe.rest or now - pipe.looked < UNFINISHED_SECONDS:
                continue
            pipe.looked, state = now, _visible(pipe.rest)
            state = state[: len(state) - masks.beginning(state)]
            if state.strip() and state != pipe.shown and _MARKER[:12] not in state:
                pipe.shown = state
                self._text(pipe, state)

    def _line(self, pipe: _Pipe, line: bytes) -> None:
        # An event may follow text that had no newline yet: the line is both.
        for marker, is_signed in ((self._signed, True), (_MARKER, False)):
            said, found, rest = line.partition(marker)
            if not found:
                continue
            event = _believed(rest, is_signed)
            if event is not None:
                if isinstance(event, RankStarted):
                    pipe.label = f"rank {event.rank}"
                if said:
                    self._line(pipe, said)
                self._on_event(event)
                write_line(_MARKER + _encoded(event))
                return
            line = said + _MARKER + rest
        state = _visible(line)
        self._on_text(pipe.local_rank, state.decode("utf-8", "replace"))
        self._text(pipe, state)

    @staticmethod
    def _text(pipe: _Pipe, text: bytes) -> None:
        write_text(b"[" + pipe.label.encode() + b"] " + text)


def write_text(line: bytes) -> None:
    """One line of text, its secrets masked."""
    write_line(masks.hide(line))


def write_line(line: bytes) -> None:
    """One whole line on standard output; a reader that is gone is no reason to stop training."""
    data = memoryview(line + b"\n")
    try:
        while data:
            data = data[os.write(1, data) :]
    except BrokenPipeError:
        pass


def _visible(line: bytes) -> bytes:
    """A progress bar redraws its line by carriage returns: what stands there at the end is what one saw."""
    return line.rstrip(b"\r").rpartition(b"\r")[2]


def _believed(line: bytes, is_signed: bool) -> Optional[Event]:
    """The event in a line, its secrets masked; None when it is none, or none that a process of that kind may tell."""
    event = parse(line)
    if event is None or not (event.WRITER == PROGRAM or (is_signed and event.WRITER == RANK)):
        return None
    return from_json(masks.hide_in(event.to_json()))


def _encoded(event: Event) -> bytes:
    return json.dumps(event.to_json(), ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")
