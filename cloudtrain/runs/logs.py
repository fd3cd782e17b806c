"""Log files of a run, one per node, with timestamps; events among their lines; and observations."""

from __future__ import annotations

import heapq
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any, NamedTuple

from cloudtrain.errors import StorageError
from cloudtrain.runs.files import end_of_lines, read_lines, read_lines_backward
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

_TAG = re.compile(
    r"\[(?:(rank \d+|node \d+)(?: (metrics|progress))?|(local rank \d+|torchrun))\] ?"
)

_LOG_FILE = re.compile(r"node-(0|[1-9][0-9]{0,5})\.log")

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


@dataclass(frozen=True, slots=True)
class LogLine:
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
    match = _TAG.match(raw)
    if match is None:
        return LogLine(time, node, "", raw)
    return LogLine(time, node, match[1] or match[3], raw[match.end() :], match[2] or "")


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


class LogReader:
    """Lines of all nodes, merged by time. Each call continues after the previous one."""

    def __init__(self, run: RunFolder) -> None:
        self._folder = run.path / "logs"
        self._offsets: dict[Path, int] = {}

    def read_batch(self) -> list[LogLine]:
        """Return the next lines, at most BATCH_LINES; empty at the end."""
        lines = []
        size = 0
        for line in self.read_all():
            lines.append(line)
            size += len(line.text)
            if len(lines) >= BATCH_LINES or size >= BATCH_CHARACTERS:
                break

        return lines

    def read_all(self) -> Iterator[LogLine]:
        """Return all unread lines. Raise StorageError if a file cannot be read."""
        with ExitStack() as stack:
            parts = [self._forwards(node, path, _open(path, stack)) for node, path in self._files()]
            for _, path, offset, line in heapq.merge(*parts, key=lambda part: part[0]):
                self._offsets[path] = offset
                yield line

    def read_backward(self) -> Iterator[LogLine]:
        """Yield all lines, the latest first, and count them as read. May raise StorageError."""
        with ExitStack() as stack:
            parts = []
            for node, path in reversed(self._files()):
                file = _open(path, stack)
                self._offsets[path] = end_of_lines(file)
                parts.append(_backwards(node, file, self._offsets[path]))

            for _, line in heapq.merge(*parts, key=lambda part: -part[0]):
                yield line

    def _files(self) -> list[tuple[int, Path]]:
        """Return the log files by node. Other files are ignored."""
        try:
            names = [(_LOG_FILE.fullmatch(path.name), path) for path in self._folder.iterdir()]
        except FileNotFoundError:
            return []
        except OSError as error:
            raise StorageError(f"{self._folder}: cannot be read: {error.strerror}") from None

        return sorted((int(match[1]), path) for match, path in names if match)

    def _forwards(
        self, node: int, path: Path, file: IO[bytes]
    ) -> Iterator[tuple[float, Path, int, LogLine]]:
        at = 0.0
        for raw, offset in read_lines(file, self._offsets.get(path, 0)):
            line = _parse_line(raw, node)
            at = line.time or at  # a line without a timestamp stays after the one before it
            yield at, path, offset, line


def _backwards(node: int, file: IO[bytes], end: int) -> Iterator[tuple[float, LogLine]]:
    at = float("inf")
    for raw in read_lines_backward(file, end):
        line = _parse_line(raw, node)
        at = line.time or at
        yield at, line


def _open(path: Path, stack: ExitStack) -> IO[bytes]:
    try:
        return stack.enter_context(open_regular_file(path))
    except OSError as error:
        hint = (
            f"{path.parent.parent.name}: the run's folder was changed by hand, or its disk failed"
        )
        raise StorageError(
            f"{path}: cannot be read: {error.strerror or error}", hint=hint
        ) from None


def _parse_line(raw: bytes, node: int) -> LogLine:
    text = raw.decode("utf-8", "replace")
    return log_line(
        parse_timestamp(text[:TIMESTAMP_CHARACTERS]), node, text[TIMESTAMP_CHARACTERS + 1 :]
    )


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
