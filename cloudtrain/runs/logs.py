"""Log files of a run, one per node, with timestamps; events among their lines; and observations."""

from __future__ import annotations

import heapq
import os
import re
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from typing import IO, Any, NamedTuple

from cloudtrain.errors import StorageError
from cloudtrain.runs.files import (
    MAX_LINE_BYTES,
    end_of_lines,
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

_TAG = re.compile(r"\[(?:(rank \d+|node \d+)(?: (metrics|progress))?|(local rank \d+|torchrun))\]")

_LOG_FILE = re.compile(r"node-(0|[1-9][0-9]{0,5})\.log")

MIN_END_BYTES = 1 << 16
"""Minimum to read at each end of a large log."""

BATCH_LINES = 10_000
BATCH_CHARACTERS = 1 << 22


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


def log_line(time: float, node: int, raw: str) -> LogLine:
    """Split a launcher line into source and text. `time`: Unix timestamp."""
    end = raw.find("]") + 1
    source, kind = _tag(raw[:end])
    if not source:
        return LogLine(time, node, "", raw)
    if raw.startswith(" ", end):
        end += 1

    return LogLine(time, node, source, raw[end:], kind)


@lru_cache
def _tag(text: str) -> tuple[str, str]:
    """Return the source and the kind in `[rank 0 metrics]`; empty texts for another text."""
    match = _TAG.fullmatch(text)
    if match is None:
        return "", ""

    return match[1] or match[3], match[2] or ""


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

    def read_batch(self, *, unfinished: bool = False) -> list[LogLine]:
        """Return the next lines, at most BATCH_LINES; empty at the end."""
        lines = []
        size = 0
        for line in self.read_all(unfinished=unfinished):
            lines.append(line)
            size += len(line.text)
            if len(lines) >= BATCH_LINES or size >= BATCH_CHARACTERS:
                break

        return lines

    def read_all(self, *, unfinished: bool = False, source: str | None = None) -> Iterator[LogLine]:
        """Return all unread lines. Raise StorageError if a file cannot be read.

        `source`: only lines of it, such as `rank 3`. Others count as read.
        """
        parts = []
        for node, path in self._files():
            parts.append(self._unread(node, LogFile(path), unfinished=unfinished, source=source))

        for part in heapq.merge(*parts, key=lambda part: part.time):
            self._offsets[part.line.node] = part.offset
            yield part.line

    def _unread(
        self, node: int, file: LogFile, *, unfinished: bool, source: str | None
    ) -> Iterator[_Part]:
        offset = self._offsets.get(node, 0)
        end = yield from _forwards(node, file, offset, unfinished=unfinished, source=source)
        self._offsets[node] = end

    def read_backward(self, *, unfinished: bool = False) -> Iterator[LogLine]:
        """Yield all lines, the latest first, and count them as read. May raise StorageError."""
        parts = []
        for node, path in reversed(self._files()):
            file = LogFile(path)
            end = end_of_lines(file)
            self._offsets[node] = end
            rest = b""
            if unfinished:
                rest = _rest_of(file, end)
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
            done += TIMESTAMP_CHARACTERS + 2 + len(part.line.text)
            if progress is not None:
                progress(min(done, size), size)

            yield number, part.line

        if progress is not None:
            progress(size, size)

    def _ends(self, node: int, file: LogFile, head: int, tail: int) -> Iterator[tuple[int, _Part]]:
        size = file.seek(0, os.SEEK_END)
        is_whole = size <= head + tail
        end = 0
        for number, part in enumerate(_forwards(node, file, 0, unfinished=is_whole), 1):
            end = part.offset
            yield number, part
            if not is_whole and end >= head:
                break

        if is_whole or end >= size - tail:
            return

        lines = _forwards(node, file, size - tail, unfinished=True)
        first = next(lines, None)  # it begins in the middle
        self.left_out += (first.offset if first else size) - end
        for part in lines:
            yield 0, part

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
    """A line of a log, and the byte offset behind it."""

    time: float
    offset: int
    line: LogLine


def _forwards(
    node: int, file: LogFile, offset: int, *, unfinished: bool, source: str | None = None
) -> Generator[_Part, None, int]:
    """Yield lines from a byte offset, with `source` only those of it; return the offset behind."""
    at = 0.0
    parse = _LineParser(node)
    tags: tuple[bytes, ...] = (b"",)
    if source is not None:
        tags = (f"[{source}]".encode(), f"[{source} ".encode())

    for raw, behind in read_lines(file, offset):
        offset = behind
        if not raw.startswith(tags, TIMESTAMP_CHARACTERS + 1):
            continue

        line = parse(raw)
        at = line.time or at  # a line without a timestamp stays after the one before it
        yield _Part(at, offset, line)

    if unfinished and (rest := _rest_of(file, offset)):
        offset = file.seek(0, os.SEEK_END)
        if rest.startswith(tags, TIMESTAMP_CHARACTERS + 1):
            line = parse(rest)
            yield _Part(line.time or at, offset, line)

    return offset


def _rest_of(file: LogFile, offset: int) -> bytes:
    """Return the beginning of what stands behind a byte offset."""
    file.seek(offset)
    return file.read(MAX_LINE_BYTES)


def _backwards(node: int, file: LogFile, end: int, rest: bytes) -> Iterator[tuple[float, LogLine]]:
    at = float("inf")
    parse = _LineParser(node)
    if rest:
        line = parse(rest)
        at = line.time or at
        yield at, line

    for raw in read_lines_backward(file, end):
        line = parse(raw)
        at = line.time or at
        yield at, line


class _LineParser:
    """Parser of the lines of one node. Lines that were printed together have one timestamp."""

    def __init__(self, node: int) -> None:
        self._node = node
        self._timestamp = b""
        self._time = 0.0

    def __call__(self, raw: bytes) -> LogLine:
        timestamp = raw[:TIMESTAMP_CHARACTERS]
        if timestamp != self._timestamp:
            self._timestamp = timestamp
            self._time = parse_timestamp(timestamp.decode("utf-8", "replace"))

        text = raw[TIMESTAMP_CHARACTERS + 1 :].decode("utf-8", "replace")
        return log_line(self._time, self._node, text)


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
