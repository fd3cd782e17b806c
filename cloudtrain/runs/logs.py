"""Log files of a run, one per node, with timestamps; events among their lines; and observations."""

from __future__ import annotations

import heapq
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import lru_cache
from itertools import chain
from pathlib import Path
from typing import IO, Any, NamedTuple

from cloudtrain.errors import StorageError
from cloudtrain.runs.files import (
    MAX_LINE_BYTES,
    end_of_lines,
    read_blocks,
    read_lines,
    read_lines_backward,
)
from cloudtrain.runs.folder import RunFolder
from cloudtrain.units import format_number
from cloudtrain_wire.bounded_files import open_regular_file
from cloudtrain_wire.events import CLIENT, EVENT_TYPES, Event, Metrics, Progress, parse

Positions = Mapping[str, Mapping[str, Any]]
"""Position in each log of a job, by the log's name in its cloud."""

RESERVED_EVENTS = tuple(name for name, event in EVENT_TYPES.items() if event.WRITER == CLIENT)
"""Event types that only the client may write. Printed ones are ignored."""

EVENT_MARK = b"::cloudtrain:: "

TIMESTAMP_CHARACTERS = 24

_TAG = r"\[(?:(rank \d+|node \d+)(?: (metrics|progress))?|(local rank \d+|torchrun))\]"

_TAGGED = re.compile(f"{_TAG} ?")

_LINES = re.compile(f"(.{{{TIMESTAMP_CHARACTERS + 1}}}{_TAG} )?(.*(?:\n\\1.*)*)\n".encode())
"""Lines with the same timestamp and tag, such as a rank that prints a lot leaves; or any line."""

_LOG_FILE = re.compile(r"node-(0|[1-9][0-9]{0,5})\.log")

MIN_END_BYTES = 1 << 16
"""Minimum to read at each end of a large log."""

BATCH_CHARACTERS = 1 << 19


class LogPart(NamedTuple):
    """Lines of one log and the position after them."""

    node: int
    lines: Sequence[tuple[float, bytes]]
    """Unix timestamp and text without line end."""
    stream: str
    """The log's name in its cloud."""
    position: Mapping[str, Any]
    """Position after these lines in the cloud's own form; plain JSON."""


class Observation(NamedTuple):
    """Result of one request to the platform. Events are written first, then each part of lines."""

    events: Sequence[Event] = ()
    """Events that the run folder lacks, in order."""
    lines: Callable[[Positions], Iterable[LogPart]] | None = None
    """Reader of the new part of each log; not called while another process reads."""


Record = Callable[[Observation], None]
"""Writer of an observation to disk and state. May raise StorageError."""


class LogLine(NamedTuple):
    """A line of a job's log."""

    time: float
    """Unix timestamp."""
    node: int
    source: str
    """`rank 3`, `node 0` (the launcher), `torchrun`; empty for other lines."""
    text: str
    kind: str = ""
    """`metrics` or `progress` for an event with numbers; empty for output."""

    @property
    def rank(self) -> int | None:
        """Rank that printed it; None for the launcher and torchrun."""
        if not self.source.startswith("rank "):
            return None

        return int(self.source[5:])


class LogBlock(LogLine):
    """Lines of one source and time. `text` has all of them, with line ends between them."""

    __slots__ = ()

    def lines(self) -> list[LogLine]:
        """Return each line."""
        time, node, source, text, kind = self
        return [LogLine(time, node, source, line, kind) for line in text.split("\n")]


def log_line(time: float, node: int, raw: str) -> LogBlock:
    """Split a launcher line into source and text. `time`: Unix timestamp."""
    match = _TAGGED.match(raw)
    if match is None:
        return LogBlock(time, node, "", raw)

    return LogBlock(time, node, match[1] or match[3], raw[match.end() :], match[2] or "")


def split_events(lines: Sequence[bytes], node: int) -> tuple[list[Event], list[bytes]]:
    """Return the events among a node's lines, and its log lines.

    The log has the output, lines that only look like an event, and a line for each event with
    metrics.
    """
    events = []
    output = []
    for line in lines:
        event = None
        if line.startswith(EVENT_MARK):
            event = parse(line[len(EVENT_MARK) :])
        if event is None or event.type in RESERVED_EVENTS:
            output.append(line)
        else:
            events.append(event.replace(node=node))
            line_of_metrics = metric_line(events[-1])
            if line_of_metrics is not None:
                output.append(line_of_metrics)

    return events, output


def log_file(run: Path, node: int) -> Path:
    """Return the path of a node's log file, which may not exist yet."""
    return run / "logs" / f"node-{node}.log"


class LogFile:
    """A log that is open only while a block is read, so that any number of nodes has logs.

    `seek` and `read` raise StorageError.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._position = 0

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Go to a byte offset and return it."""
        with self._opened() as file:
            self._position = file.seek(offset, whence)

        return self._position

    def read(self, size: int) -> bytes:
        """Return the next bytes; empty at the end."""
        with self._opened() as file:
            file.seek(self._position)
            block = file.read(size)

        self._position += len(block)
        return block

    @contextmanager
    def _opened(self) -> Iterator[IO[bytes]]:
        try:
            with open_regular_file(self.path) as file:
                yield file
        except OSError as error:
            run = self.path.parent.parent.name
            hint = f"{run}: the run's folder was changed by hand, or its disk failed"
            raise StorageError(
                f"{self.path}: cannot be read: {error.strerror or error}", hint=hint
            ) from None


class LogReader:
    """Lines of all nodes, merged by time. Each call continues after the previous one.

    `unfinished` in a call: also return what a log has after its last line end, because no more of
    that line will come.
    """

    def __init__(self, run: RunFolder) -> None:
        self._folder = run.path / "logs"
        self._offsets: dict[int, int] = {}
        """Node -> byte offset in its log."""
        self.left_out = 0
        """Bytes that `read_ends` did not read."""

    def read_batch(self, *, unfinished: bool = False) -> list[LogBlock]:
        """Return the next blocks, of about BATCH_CHARACTERS; empty at the end."""
        blocks = []
        size = 0
        for block in self.read_all(unfinished=unfinished):
            blocks.append(block)
            size += len(block.text)
            if size >= BATCH_CHARACTERS:
                break

        return blocks

    def read_all(self, *, unfinished: bool = False) -> Iterator[LogBlock]:
        """Return all unread lines. Raise StorageError if a file cannot be read."""
        parts = []
        for node, path in self._files():
            offset = self._offsets.get(node, 0)
            parts.append(_forwards(node, LogFile(path), offset, unfinished=unfinished))

        for part in heapq.merge(*parts, key=lambda part: part.time):
            self._offsets[part.block.node] = part.offset
            yield part.block

    def read_backward(self, *, unfinished: bool = False) -> Iterator[LogBlock]:
        """Yield all lines, the latest first, and count them as read. May raise StorageError."""
        parts = []
        for node, path in reversed(self._files()):
            file = LogFile(path)
            end = end_of_lines(file)
            self._offsets[node] = end
            rest = b""
            if unfinished:
                file.seek(end)
                rest = file.read(MAX_LINE_BYTES)
                self._offsets[node] = file.seek(0, os.SEEK_END)

            parts.append(_backwards(node, file, end, rest))

        for _, line in heapq.merge(*parts, key=lambda part: -part[0]):
            yield line

    def read_ends(
        self, head: int, tail: int, progress: Callable[[int, int], None] | None = None
    ) -> Iterator[tuple[int, LogLine]]:
        """Yield the lines at the beginning and at the end of the logs, with their numbers from 1.

        `head` and `tail`: bytes for all nodes together. Behind what is left out the numbers are 0.
        `progress` gets the bytes read and all bytes to read.
        """
        files = self._files()
        parts = []
        size = 0
        for node, path in files:
            ends = (max(MIN_END_BYTES, end // len(files)) for end in (head, tail))
            parts.append(self._ends(node, LogFile(path), *ends))
            size += LogFile(path).seek(0, os.SEEK_END)

        done = 0
        size = min(size, head + tail)
        for number, part in heapq.merge(*parts, key=lambda item: item[1].time):
            for line in part.block.lines():
                yield number, line
                done += TIMESTAMP_CHARACTERS + 2 + len(line.text)
                if number:
                    number += 1

            if progress is not None:
                progress(min(done, size), size)

        if progress is not None:
            progress(size, size)

    def _ends(self, node: int, file: LogFile, head: int, tail: int) -> Iterator[tuple[int, _Part]]:
        size = file.seek(0, os.SEEK_END)
        is_whole = size <= head + tail
        end = 0
        number = 1
        for part in _forwards(node, file, 0, unfinished=is_whole):
            end = part.offset
            yield number, part
            number += part.block.text.count("\n") + 1
            if not is_whole and end >= head:
                break

        if is_whole:
            return

        start = end  # a block may reach into the tail
        if end < size - tail:
            _, start = next(read_lines(file, size - tail), (b"", size))  # it begins in the middle
            self.left_out += start - end
            number = 0

        for part in _forwards(node, file, start, unfinished=True):
            yield number, part
            if number:
                number += part.block.text.count("\n") + 1

    def _files(self) -> list[tuple[int, Path]]:
        """Return the log files by node. Other files are ignored."""
        try:
            names = [(_LOG_FILE.fullmatch(path.name), path) for path in self._folder.iterdir()]
        except FileNotFoundError:
            return []
        except OSError as error:
            raise StorageError(f"{self._folder}: cannot be read: {error.strerror}") from None

        return sorted((int(match[1]), path) for match, path in names if match)


class _Part(NamedTuple):
    """Lines of a log, and the byte offset behind them."""

    time: float
    offset: int
    block: LogBlock


def _forwards(node: int, file: LogFile, offset: int, *, unfinished: bool) -> Iterator[_Part]:
    """Yield lines from a byte offset."""
    at = 0.0
    for lines, behind in read_blocks(file, offset, unfinished=unfinished):
        for match in _LINES.finditer(lines):
            block = _block(node, match)
            at = block.time or at  # a line without a timestamp stays after the one before it
            yield _Part(at, behind - len(lines) + match.end(), block)


def _backwards(node: int, file: LogFile, end: int, rest: bytes) -> Iterator[tuple[float, LogBlock]]:
    at = float("inf")
    for raw in chain([rest] * bool(rest), read_lines_backward(file, end)):
        for match in _LINES.finditer(raw + b"\n"):
            block = _block(node, match)
            at = block.time or at
            yield at, block


def _block(node: int, match: re.Match[bytes]) -> LogBlock:
    """Return lines that `_LINES` has found in a node's log."""
    head, source, kind, other, text = match.groups(b"")
    if not head:
        time = _time_of(text[:TIMESTAMP_CHARACTERS])
        return log_line(time, node, text[TIMESTAMP_CHARACTERS + 1 :].decode("utf-8", "replace"))

    time = _time_of(head[:TIMESTAMP_CHARACTERS])
    lines = [line[len(head) :] for line in match[0].split(b"\n")]  # faster than `bytes.replace`
    text = b"\n".join(lines[:-1])
    source = source or other
    return LogBlock(time, node, source.decode(), text.decode("utf-8", "replace"), kind.decode())


@lru_cache
def _time_of(timestamp: bytes) -> float:
    return parse_timestamp(timestamp.decode("utf-8", "replace"))


def format_timestamp(seconds: float) -> str:
    """Return a Unix timestamp as `2026-11-21T02:04:34.447Z`, 24 characters."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds")[:23] + "Z"


def parse_timestamp(text: str) -> float:
    """Return the Unix timestamp of such a text, or 0."""
    try:
        return datetime.fromisoformat(text).timestamp()
    except (ValueError, OverflowError):
        return 0.0


def metric_line(event: Event) -> bytes | None:
    """Return `[rank 0 metrics] step 100 loss 0.25` for an event, or None without numbers."""
    if isinstance(event, Metrics):
        kind = "metrics"
        text = metrics_text(event)
    elif isinstance(event, Progress):
        kind = "progress"
        text = progress_text(event)
    else:
        return None

    if event.rank >= 0:
        who = f"rank {event.rank}"
    else:
        who = f"node {event.node}"

    line = f"[{who} {kind}] {text}".replace("\n", " ").replace("\r", " ")
    if not text:
        return None

    return line.encode("utf-8", "backslashreplace")


def metrics_text(event: Metrics) -> str:
    """Return `epoch 1  step 100  loss 0.25  val_accuracy 0.93`."""
    parts = []
    if event.epoch is not None:
        parts.append(f"epoch {event.epoch}")
    if event.step is not None:
        parts.append(f"step {event.step}")

    parts += [f"{name} {format_number(value)}" for name, value in event.values.items()]
    return "  ".join(parts)


def progress_text(event: Progress) -> str:
    """Return `epoch 1/3  step 100/300  loss 0.25  1.2k samples/s`."""
    parts = position_parts(event)
    if event.loss is not None:
        parts.append(f"loss {format_number(event.loss)}")
    if event.samples_per_s is not None:
        parts.append(f"{format_number(event.samples_per_s)} {event.unit or 'samples'}/s")

    return "  ".join(parts)


def position_parts(progress: Progress) -> list[str]:
    """Return `epoch 1/3` and `step 100/300` if reported, with `?` for an unknown total."""
    parts = []
    if progress.epoch is not None:
        parts.append(f"epoch {progress.epoch}/{_total(progress.epochs)}")
    if progress.step is not None:
        parts.append(f"step {progress.step}/{_total(progress.steps)}")

    return parts


def _total(number: float | None) -> str:
    if number is None:
        return "?"

    return str(number)
