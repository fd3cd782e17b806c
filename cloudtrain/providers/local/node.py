"""One node of a local run: the launcher's process, its output and its reports."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import IO

from cloudtrain.planning.launch import Launch
from cloudtrain.runs.logs import format_timestamp, split_events
from cloudtrain_launcher.events import Cause, Event, NodeEnded, NodeStarted

READ_BYTES = 1 << 16
"""Maximum bytes of a launcher's output in one read."""


@dataclass(kw_only=True)
class Node:
    """A launcher and its reports."""

    rank: int
    process: subprocess.Popen[bytes]
    log: IO[bytes]
    """Log file of the node, unbuffered."""
    unfinished_line: bytes = b""
    """End of its output until now, without a newline."""
    lost_lines: int = 0
    """Log lines that could not be written because the disk was full."""
    exit_code: int | None = None
    """Exit code as in `Popen.returncode`; None while it runs."""
    error: Cause | None = None
    """First cause of a failure, as its launcher reported it."""
    stopped: bool = False
    """True if its launcher reported a stop.

    It may exit with 0 then, so that the platform does not end its peers.
    """
    stop_requested_at: float = 0.0
    """Unix timestamp of the launcher's stop request; 0 without one."""
    stopped_by: str = ""
    """Who requested the stop, if known and not the supervisor."""
    forced: bool = False
    """True if its launcher killed processes after the grace period."""
    scratch_folder: str = ""
    """Temporary folder of its launcher, which remains if the launcher is killed."""

    @property
    def output(self) -> int:
        """File descriptor of its output. RuntimeError if it was started without a pipe."""
        if self.process.stdout is None:
            raise RuntimeError("a launcher was started without a pipe")
        return self.process.stdout.fileno()

    @property
    def stop_reason(self) -> str:
        """Reason of the stop, if the supervisor did not request it."""
        return f"node {self.rank} was told to stop" + (
            f": {self.stopped_by}" if self.stopped_by else ""
        )

    def read(self, record: Callable[[Sequence[Event]], None]) -> bool:
        """Process what the launcher has printed; return False if all of it was read.

        Events go to `record` before lines go to the log: a reader that sees a line then finds its
        error.
        """
        try:
            chunk = os.read(self.output, READ_BYTES)
        except BlockingIOError:
            return self.process.poll() is None
        *lines, self.unfinished_line = (self.unfinished_line + chunk).split(b"\n")
        if not chunk and self.unfinished_line:
            lines = [self.unfinished_line]
            self.unfinished_line = b""
        events, text_lines = split_events(lines, self.rank)
        for event in events:
            self._note(event)
        if events:
            record(events)
        if text_lines:
            self._write(text_lines)
        return bool(chunk)

    def _note(self, event: Event) -> None:
        if isinstance(event, NodeStarted):
            self.scratch_folder = event.scratch
        elif isinstance(event, NodeEnded):
            self.error = event.error
            self.forced = event.forced
            self.stopped = event.outcome == "stopped"
            self.stop_requested_at = event.stop_asked
            self.stopped_by = event.stopped_by

    def _write(self, lines: Sequence[bytes]) -> None:
        time_now = format_timestamp(time.time()).encode()
        text = b"".join(time_now + b" " + line + b"\n" for line in lines)
        try:
            written = self.log.write(text)
        except OSError:  # a full disk loses log lines, not the training
            written = 0
        self.lost_lines += text[written:].count(b"\n")


def start_node(launch: Launch, env: Mapping[str, str], log: IO[bytes], *, umask: int) -> Node:
    """Start a launcher in a new session.

    `umask`: for files of the job; -1: the supervisor's.
    """
    process = subprocess.Popen(
        launch.argv,
        cwd=launch.cwd,
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
        umask=umask,
    )
    return Node(rank=launch.node, process=process, log=log)
