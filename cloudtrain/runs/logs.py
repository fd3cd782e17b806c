"""What the nodes of a run printed: log files with a stamp on every line, and the events among the lines."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from cloudtrain.runs.store import RunFolder, parse_events

EVENT_MARK = b"::cloudtrain:: "

NOT_THE_JOBS = ("submitting", "creating", "submitted", "phase", "cursor", "stop_requested", "ended")
"""Events that only we may write; a job that prints one is not believed."""

STAMP_CHARACTERS = 24


@dataclass(frozen=True, slots=True)
class LogLine:
    """One line of a job's log."""

    time: float
    """Seconds since 1970."""
    node: int
    source: str
    """`rank 3`, `node 0` (the launcher), `torchrun`; empty when nobody said."""
    text: str

    @property
    def rank(self) -> int | None:
        """The rank that printed it; None for the launcher's and torchrun's own lines."""
        return int(self.source[5:]) if self.source.startswith("rank ") else None


_TAG = re.compile(r"\[(rank \d+|node \d+|local rank \d+|torchrun)\] ?")


def log_line(time: float, node: int, raw: str) -> LogLine:
    """A line as the launcher wrote it, its mark taken apart."""
    match = _TAG.match(raw)
    return LogLine(time, node, match[1], raw[match.end() :]) if match else LogLine(time, node, "", raw)


def split_events(lines: Sequence[bytes], node: int) -> tuple[list[dict[str, Any]], list[bytes]]:
    """The job's events among a node's lines, and the lines that are text."""
    marked = [line[len(EVENT_MARK) :] for line in lines if line.startswith(EVENT_MARK)]
    told = parse_events(b"\n".join(marked))
    events = [{**event, "node": node} for event in told if event["type"] not in NOT_THE_JOBS]
    return events, [line for line in lines if not line.startswith(EVENT_MARK)]


def log_file(run: Path, node: int) -> Path:
    """All that one node printed."""
    return run / "logs" / f"node-{node}.log"


def read_logs(run: RunFolder, cursor: Mapping[str, Any]) -> tuple[list[LogLine], Mapping[str, Any]]:
    """The lines of all nodes after a cursor (empty: from the start), merged by time, and the next cursor."""
    lines: list[LogLine] = []
    offsets = dict(cursor)
    for path in sorted((run.path / "logs").glob("node-*.log")):
        node = int(path.stem.removeprefix("node-"))
        with path.open("rb") as file:
            file.seek(offsets.get(path.name, 0))
            data = file.read()
        whole = data[: data.rfind(b"\n") + 1]
        offsets[path.name] = offsets.get(path.name, 0) + len(whole)
        for raw in whole.decode("utf-8", "replace").split("\n")[:-1]:
            lines.append(log_line(parse_stamp(raw[:STAMP_CHARACTERS]), node, raw[STAMP_CHARACTERS + 1 :]))
    lines.sort(key=lambda line: line.time)
    return lines, offsets


def stamp(seconds: float) -> str:
    """`2026-11-21T02:04:34.447Z`, 24 characters."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds")[:23] + "Z"


def parse_stamp(text: str) -> float:
    """Seconds since 1970 of a stamp; 0 when it is none."""
    try:
        return datetime.fromisoformat(text).timestamp()
    except ValueError:
        return 0.0
