"""Output of a node's ranks: one named pipe per rank, merged into a stream of whole lines.

Lines have a prefix such as `[rank 3]`, or `[node 0]` for the launcher; events are written
unchanged. Lines that arrive together are written together, and lines of two ranks never mix. Secret
values are masked.
"""

from __future__ import annotations

import json
import os
import selectors
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from cloudtrain_job import MARKER, signed_marker
from cloudtrain_launcher.reporting import write_lines, write_text
from cloudtrain_wire.events import PROGRAM, RANK, Activity, Event, RankStarted, from_json, parse
from cloudtrain_wire.prompts import AT_PROMPT
from cloudtrain_wire.secret_values import masker

_MARKER = MARKER.encode()

_MARK = _MARKER[:12]
"""Beginning of every event, signed ones included."""

MAX_UNFINISHED_BYTES = 64 * 1024
"""Maximum length of an unfinished line before it is written."""

UNFINISHED_SECONDS = 10.0
"""Delay before a changed unfinished line, such as a progress bar, is written."""

GATHER_SECONDS = 0.002
"""Pause between two reads of little text, so that a rank that prints a lot costs one read for many
lines.
"""

LITTLE_BYTES = 4096
"""Less than a pipe holds that is full: a rank never waits for the pause."""


@dataclass
class _Pipe:
    """A pipe and its unfinished line."""

    label: str
    local_rank: int
    """-1: torchrun."""
    buffer: bytes = b""
    """The unfinished line."""
    last_shown: bytes = b""
    """Last written part of the unfinished line."""
    shown_at: float = 0.0
    """Time of the last comparison, by `time.monotonic()`."""

    @property
    def prefix(self) -> bytes:
        """What its lines begin with."""
        return b"[" + self.label.encode() + b"] "


class Streams:
    """Pipes of one node's ranks, created in `folder`.

    `on_event` is called for every event, `on_text` with the local rank and other lines, as a text
    of one or several.
    `key`: proof of the processes that may report a rank's start, end and errors. The same line
    without the key is text: a program may print anything, even another job's log.
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
        self._on_event = on_event
        self._on_text = on_text
        self._signed = signed_marker(key).encode()
        self._selector = selectors.DefaultSelector()
        self._pipes: dict[int, _Pipe] = {}
        self.last_output = time.monotonic()
        """Time of the last output of a rank, by `time.monotonic()`."""
        self.at_prompt = False
        """Whether a rank waits for a person."""
        self._gathers = False
        for local_rank in range(processes):
            path = folder / f"rank-{local_rank}"
            os.mkfifo(path, 0o600)
            # Opened for writing too, so that a rank's exit does not end the pipe.
            self._add(
                os.open(path, os.O_RDWR | os.O_NONBLOCK),
                _Pipe(f"local rank {local_rank}", local_rank),
            )

    def add_torchrun(self, fd: int) -> None:
        """Also read torchrun's own output, from a file descriptor."""
        os.set_blocking(fd, False)
        self._add(fd, _Pipe("torchrun", -1))

    def add_wakeup(self, fd: int) -> None:
        """Let a readable file descriptor end the wait of `pump`."""
        self._selector.register(fd, selectors.EVENT_READ, None)

    def pump(self, timeout: float) -> None:
        """Write the lines that have arrived; wait at most `timeout` seconds for the first."""
        if self._gathers:
            time.sleep(GATHER_SECONDS)

        sizes = []
        for key, _ in self._selector.select(timeout):
            if key.data is None:
                os.read(key.fd, 4096)
            else:
                sizes.append(self._read(key.fd))

        self._gathers = 0 < max(sizes, default=0) < LITTLE_BYTES

        self._show_unfinished(time.monotonic())

    def drain(self) -> None:
        """Write all remaining output, unfinished lines included."""
        for fd, pipe in self._pipes.items():
            while self._read(fd):
                pass
            if pipe.buffer:
                self._handle_line(pipe, pipe.buffer)

            pipe.buffer = b""

    def _add(self, fd: int, pipe: _Pipe) -> None:
        self._pipes[fd] = pipe
        self._selector.register(fd, selectors.EVENT_READ, pipe.label)

    def _read(self, fd: int) -> int:
        """Write the lines that have arrived in a pipe; return the number of bytes that were read."""
        pipe = self._pipes[fd]
        try:
            chunk = os.read(fd, MAX_UNFINISHED_BYTES)
        except BlockingIOError:
            return 0

        if not chunk:
            if fd in self._selector.get_map():
                self._selector.unregister(fd)

            return 0

        if pipe.local_rank >= 0:
            self.last_output = time.monotonic()

        was_empty = not pipe.buffer
        lines, line_end, pipe.buffer = (pipe.buffer + chunk).rpartition(b"\n")
        if line_end and (_MARK in lines or b"\r" in lines):
            for line in lines.split(b"\n"):
                self._handle_line(pipe, line)
        elif line_end:
            self._write_text(pipe, lines)

        if line_end or was_empty:
            pipe.last_shown = b""
            pipe.shown_at = time.monotonic()

        if len(pipe.buffer) > MAX_UNFINISHED_BYTES:
            pipe.buffer = self._flush_long_line(pipe)

        return len(chunk)

    def _flush_long_line(self, pipe: _Pipe) -> bytes:
        """Write a line that is too long to wait for its end; return the remaining buffer.

        For a progress bar return its visible text, and write nothing.
        """
        visible = _visible_text(pipe.buffer)
        if len(visible) <= MAX_UNFINISHED_BYTES:
            return b"\r" + visible

        # Do not split a secret value.
        split = len(pipe.buffer) - masker.partial_match_length(pipe.buffer)
        self._handle_line(pipe, pipe.buffer[:split])

        return pipe.buffer[split:]

    def _show_unfinished(self, time_now: float) -> None:
        """Write unfinished lines with new visible text, every `UNFINISHED_SECONDS`."""
        for pipe in self._pipes.values():
            if not pipe.buffer or time_now - pipe.shown_at < UNFINISHED_SECONDS:
                continue

            pipe.shown_at, visible = time_now, _visible_text(pipe.buffer)
            visible = visible[: len(visible) - masker.partial_match_length(visible)]
            if visible.strip() and visible != pipe.last_shown and _MARK not in visible:
                pipe.last_shown = visible
                write_text(pipe.prefix + visible)

    def _handle_line(self, pipe: _Pipe, line: bytes) -> None:
        # An event may follow text without a newline: split the line.
        for marker, is_signed in ((self._signed, True), (_MARKER, False)):
            before, mark, report = line.partition(marker)
            if not mark:
                continue

            event = _accepted_event(report, is_signed)

            if event is not None:
                if isinstance(event, RankStarted):
                    pipe.label = f"rank {event.rank}"
                elif isinstance(event, Activity):
                    self.at_prompt = event.activity == AT_PROMPT
                if before:
                    self._handle_line(pipe, before)
                if event.WRITER == PROGRAM:  # before the launcher's reaction to the report
                    write_lines(_MARKER + _encode(event))

                self._on_event(event)
                if event.WRITER != PROGRAM:
                    write_lines(_MARKER + _encode(event))

                return

            line = before + _MARKER + report

        self._write_text(pipe, _visible_text(line))

    def _write_text(self, pipe: _Pipe, lines: bytes) -> None:
        """Pass on and write one line or several, without the last line end."""
        self._on_text(pipe.local_rank, lines.decode("utf-8", "replace"))
        write_text(pipe.prefix + lines.replace(b"\n", b"\n" + pipe.prefix))


def _visible_text(line: bytes) -> bytes:
    """Return a line's visible text in a terminal: carriage returns overwrite a progress bar."""
    return line.rstrip(b"\r").rpartition(b"\r")[2]


def _accepted_event(line: bytes, is_signed: bool) -> Event | None:
    """Return the masked event in a line; None if it is invalid or its process may not write it."""
    event = parse(line)
    if event is None or not (event.WRITER == PROGRAM or (is_signed and event.WRITER == RANK)):
        return None

    return from_json(masker.mask_json(event.to_json()))


def _encode(event: Event) -> bytes:
    return json.dumps(event.to_json(), ensure_ascii=False, separators=(",", ":")).encode(
        "utf-8", "replace"
    )
