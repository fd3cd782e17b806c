"""Sends the lines that containers print to CloudWatch: in batches, with a configurable lag."""

from __future__ import annotations

import threading
import time
import traceback
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from itertools import groupby
from typing import Any, NamedTuple

GROUP = "/aws/sagemaker/TrainingJobs"
BATCH_SECONDS = 0.05
MAX_EVENTS = 1000
MAX_CHARACTERS = 200_000
"""Limits of one batch, and of one event: well below CloudWatch's limits in bytes."""
CONTROL_CHARACTERS = {9: "#011", 13: "#015", 27: "#033"}
"""Control characters arrive as text, as lines of 2019 to 2025 show."""


class Line(NamedTuple):
    """One line, and when it may arrive."""

    due: float
    stream: str
    milliseconds: int
    text: str


class LogGroup:
    """The log group of all training jobs. Lines arrive in their order, `lag_seconds` after they
    were printed.

    As in the cloud nothing waits for them: a job may be over before its last lines are there.
    """

    def __init__(self, client: Any, unexpected_errors: list[str], lag_seconds: float = 0) -> None:
        self.lag_seconds = lag_seconds
        self.listeners: list[Callable[[str, str], None]] = []
        """Called with the stream and each line of it, at once: tuning jobs read metrics there."""
        self._client = client
        self._unexpected_errors = unexpected_errors
        self._lines: deque[Line] = deque()
        self._streams: set[str] = set()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._ship, name="loopback-logs", daemon=True)
        self._thread.start()

    def write_line(self, stream: str, line: bytes) -> None:
        """Take one line. CloudWatch holds no empty ones."""
        text = line.decode("utf-8", "replace").translate(CONTROL_CHARACTERS)
        for listener in list(self.listeners):
            listener(stream, text)
        moment = time.time()
        for start in range(0, len(text), MAX_CHARACTERS):
            part = text[start : start + MAX_CHARACTERS]
            self._lines.append(Line(moment + self.lag_seconds, stream, int(moment * 1000), part))

    def close(self) -> None:
        """Send what is due, drop what is late."""
        self._closing.set()
        self._thread.join()

    def _ship(self) -> None:
        more = True
        while more:
            more = not self._closing.wait(BATCH_SECONDS)
            try:
                self._send()
            except Exception:  # noqa: BLE001  (whatever it is: the other jobs' lines must still arrive)
                self._unexpected_errors.append(traceback.format_exc())

    def _send(self) -> None:
        due: list[Line] = []
        while self._lines and self._lines[0].due <= time.time():
            due.append(self._lines.popleft())
        due.sort(key=lambda line: line.stream)  # stable: the order within a stream stays
        for stream, lines in groupby(due, key=lambda line: line.stream):
            events: list[dict[str, Any]] = [
                {"timestamp": line.milliseconds, "message": line.text} for line in lines
            ]
            events.sort(key=lambda event: event["timestamp"])
            self._begin(stream)
            for start in range(0, len(events), MAX_EVENTS):
                batch = events[start : start + MAX_EVENTS]
                self._client.put_log_events(
                    logGroupName=GROUP, logStreamName=stream, logEvents=batch
                )

    def _begin(self, stream: str) -> None:
        if not self._streams:
            # A stack may have made it.
            with suppress(self._client.exceptions.ResourceAlreadyExistsException):
                self._client.create_log_group(logGroupName=GROUP)
        if stream not in self._streams:
            self._client.create_log_stream(logGroupName=GROUP, logStreamName=stream)
            self._streams.add(stream)
