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
from cloudtrain_launcher.masking import masker

_MARKER = MARKER.encode()

MAX_UNFINISHED_BYTES = 64 * 1024
"""Bytes after which an unfinished line is passed on as it is."""

UNFINISHED_SECONDS = 10.0
"""How often the state of a line that is still being written is passed on, such as a progress bar's."""


@dataclass
class _Pipe:
    """One pipe and the line that is being written into it."""

    label: str
    local_rank: int
    """-1: torchrun's own."""
    buffer: bytes = b""
    last_shown: bytes = b""
    """Of the unfinished line, what was passed on last."""
    shown_at: float = 0.0


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
        on_line: Callable[[int, str], None] = lambda *_: None,
    ) -> None:
        self._on_event, self._on_line = on_event, on_line
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
            if pipe.buffer:
                self._handle_line(pipe, pipe.buffer)
            pipe.buffer = b""

    def _add(self, fd: int, pipe: _Pipe) -> None:
        self._pipes[fd] = pipe
        self._selector.register(fd, selectors.EVENT_READ, pipe.label)

    def _read(self, fd: int) -> bool:
        pipe = self._pipes[fd]
        try:
            chunk = os.read(fd, MAX_UNFINISHED_BYTES)
        except BlockingIOError:
            return False
        if not chunk:
            if fd in self._selector.get_map():
                self._selector.unregister(fd)
            return False
        begins = not pipe.buffer
        *lines, pipe.buffer = (pipe.buffer + chunk).split(b"\n")
        for line in lines:
            self._handle_line(pipe, line)
        if lines or begins:
            pipe.last_shown, pipe.shown_at = b"", time.monotonic()
        if len(pipe.buffer) > MAX_UNFINISHED_BYTES:
            pipe.buffer = self._flush_long_line(pipe)
        return True

    def _flush_long_line(self, pipe: _Pipe) -> bytes:
        """What stays of a line that is too long to wait for its end: of a progress bar, all that one still sees."""
        state = _visible_text(pipe.buffer)
        if len(state) <= MAX_UNFINISHED_BYTES:
            return b"\r" + state
        split = len(pipe.buffer) - masker.partial_match_length(pipe.buffer)  # a secret is not cut in two
        self._handle_line(pipe, pipe.buffer[:split])
        return pipe.buffer[split:]

    def _show_unfinished(self, now: float) -> None:
        """Pass on what a line shows that has no end yet, if it is another than the last time."""
        for pipe in self._pipes.values():
            if not pipe.buffer or now - pipe.shown_at < UNFINISHED_SECONDS:
                continue
            pipe.shown_at, state = now, _visible_text(pipe.buffer)
            state = state[: len(state) - masker.partial_match_length(state)]
            if state.strip() and state != pipe.last_shown and _MARKER[:12] not in state:
                pipe.last_shown = state
                self._write_line(pipe, state)

    def _handle_line(self, pipe: _Pipe, line: bytes) -> None:
        # An event may follow text that had no newline yet: the line is both.
        for marker, is_signed in ((self._signed, True), (_MARKER, False)):
            before, found, buffer = line.partition(marker)
            if not found:
                continue
            event = _accepted_event(buffer, is_signed)
            if event is not None:
                if isinstance(event, RankStarted):
                    pipe.label = f"rank {event.rank}"
                if before:
                    self._handle_line(pipe, before)
                self._on_event(event)
                write_line(_MARKER + _encode(event))
                return
            line = before + _MARKER + buffer
        state = _visible_text(line)
        self._on_line(pipe.local_rank, state.decode("utf-8", "replace"))
        self._write_line(pipe, state)

    @staticmethod
    def _write_line(pipe: _Pipe, text: bytes) -> None:
        write_text(b"[" + pipe.label.encode() + b"] " + text)


def write_text(line: bytes) -> None:
    """One line of text, its secrets masked."""
    write_line(masker.mask(line))


def write_line(line: bytes) -> None:
    """One whole line on standard output; a reader that is gone is no reason to stop training."""
    data = memoryview(line + b"\n")
    try:
        while data:
            data = data[os.write(1, data) :]
    except BrokenPipeError:
        pass


def _visible_text(line: bytes) -> bytes:
    """A progress bar redraws its line by carriage returns: what stands there at the end is what one saw."""
    return line.rstrip(b"\r").rpartition(b"\r")[2]


def _accepted_event(line: bytes, is_signed: bool) -> Optional[Event]:
    """The event in a line, its secrets masked; None when it is none, or none that a process of that kind may tell."""
    event = parse(line)
    if event is None or not (event.WRITER == PROGRAM or (is_signed and event.WRITER == RANK)):
        return None
    return from_json(masker.mask_json(event.to_json()))


def _encode(event: Event) -> bytes:
    return json.dumps(event.to_json(), ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")
