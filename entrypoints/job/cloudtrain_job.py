"""What a training script may use inside a job: events, metrics and the result. Standard library only.

    from cloudtrain_job import log_metrics
    log_metrics(step=100, loss=0.25, val_accuracy=0.93)

An event is one marked line on standard output, so that it passes through every platform's log unchanged:
`::cloudtrain:: {"type": "metrics", "time": 1795213216.1, "node": 0, "rank": 0, "seq": 17952…, …}`.
(node, rank, seq) names an event: a reader that meets it twice counts it once.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

MARKER = "::cloudtrain:: "
MAX_LINE_BYTES = 4000
"""Below PIPE_BUF (4096 on Linux), up to which one write to a pipe is never torn (POSIX write(2))."""

_last_seq, _counting = 0, threading.Lock()
_channel = 1


def emit(kind: str, /, **fields: Any) -> None:
    """Write one event line whole, in a single write. Values must be JSON; long strings are shortened."""
    line = event_line(kind, **fields)
    with suppress(AttributeError, OSError, ValueError):  # a program may have closed or replaced its output
        sys.stdout.flush()
    with suppress(OSError):
        os.write(_channel, line)


def send_through(descriptor: int) -> None:
    """Send events through another descriptor than standard output, which a program may close."""
    global _channel
    _channel = descriptor


def event_line(kind: str, /, **fields: Any) -> bytes:
    """The event as its line, at most `MAX_LINE_BYTES` long: the longest strings give way first."""
    event: dict[str, Any] = {
        "type": kind,
        "time": round(time.time(), 3),
        "node": int(os.environ.get("CLOUDTRAIN_NODE_RANK", "0")),
        "rank": int(os.environ.get("RANK", "-1")),
        "seq": _next_seq(),
        **fields,
    }
    line = _encode(event)
    while len(line) > MAX_LINE_BYTES:
        longest = max((k for k in event if isinstance(event[k], str)), key=lambda k: len(event[k]), default=None)
        if longest is None or len(event[longest]) < 64:
            raise ValueError(f"event {kind!r} is {len(line)} bytes long; at most {MAX_LINE_BYTES} can be sent whole")
        keep = max(32, len(event[longest]) - (len(line) - MAX_LINE_BYTES) - 8)
        event[longest] = "… " + event[longest][-keep:]
        line = _encode(event)
    return line


def log_metrics(step: int | None = None, epoch: int | None = None, **values: float) -> None:
    """Report named numbers, from rank 0 only: SageMaker and Azure ML count what several ranks report twice."""
    if int(os.environ.get("RANK", "0")) == 0:
        emit("metrics", step=step, epoch=epoch, values={k: float(v) for k, v in values.items()})


def write_result(outcome: str, **fields: Any) -> None:
    """Tell the node's launcher how training ended: "succeeded" or "stopped". Call it on all ranks.

    The word of each node's first rank counts: a node whose ranks stopped because others were told to has not succeeded.
    torchrun exits 1 after every SIGTERM, however well its workers ended; the launcher believes this file instead.
    """
    path = os.environ.get("CLOUDTRAIN_RESULT_FILE")
    if path and int(os.environ.get("LOCAL_RANK", "0")) == 0:
        temporary = Path(path + ".tmp")
        temporary.write_text(json.dumps({"outcome": outcome, **fields}))
        temporary.replace(path)


def _encode(event: dict[str, Any]) -> bytes:
    return (MARKER + json.dumps(event, ensure_ascii=False, separators=(",", ":")) + "\n").encode("utf-8", "replace")


def _next_seq() -> int:
    """Strictly growing, also across restarts of the process: the clock in nanoseconds, nudged."""
    global _last_seq
    with _counting:  # threads tell of things, too
        _last_seq = max(_last_seq + 1, time.time_ns())
        return _last_seq
