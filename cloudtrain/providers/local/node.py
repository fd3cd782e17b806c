"""Nodes of a local run: the launchers' processes, their output and reports, and how the run ended."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import IO

from cloudtrain.planning.launch import Launch
from cloudtrain.providers.local.processes import STOPPED
from cloudtrain.runs.logs import EVENT_MARK, format_timestamp, split_events
from cloudtrain_wire.causes import first_cause, process_name
from cloudtrain_wire.events import Cause, Ended, Event, NodeEnded, NodeStarted

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
        reason = f"node {self.rank} was told to stop"
        if self.stopped_by:
            reason += f": {self.stopped_by}"

        return reason

    def read(self, record: Callable[[Sequence[Event]], None]) -> bool:
        """Process what the launcher has printed; return False if all of it was read.

        Events go to `record` before lines go to the log: a reader that sees a line then finds its
        error.
        """
        try:
            chunk = os.read(self.output, READ_BYTES)
        except BlockingIOError:
            return self.process.poll() is None

        lines, line_end, self.unfinished_line = (self.unfinished_line + chunk).rpartition(b"\n")
        if not chunk and self.unfinished_line:
            lines, line_end, self.unfinished_line = self.unfinished_line, b"\n", b""

        if EVENT_MARK in lines:
            events, text_lines = split_events(lines.split(b"\n"), self.rank)
            for event in events:
                self._note(event)
            if events:
                record(events)
            if text_lines:
                self._write(b"\n".join(text_lines))
        elif line_end:
            self._write(lines)

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

    def _write(self, lines: bytes) -> None:
        """Write one line or several, without the last line end, with the time of now."""
        time_now = format_timestamp(time.time()).encode() + b" "
        text = time_now + lines.replace(b"\n", b"\n" + time_now) + b"\n"
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


def run_outcome(
    nodes: Sequence[Node],
    *,
    stop_reason: str,
    signalled_at: float,
    first_failed: Node | None,
    finished_ranks: Mapping[int, tuple[int, float]],
) -> Ended:
    """Return the event that ends the run, without its time. All nodes must have ended.

    `stop_reason`: why the supervisor stopped the run; empty if it did not. `signalled_at`: Unix
    timestamp at which it first signalled the nodes. `finished_ranks`: rank -> node and Unix
    timestamp, of ranks that ended with 0.
    """
    errors = [node.error for node in nodes if node.error]
    if nodes and all(node.exit_code == 0 for node in nodes):
        for node in nodes:
            if node.stopped:
                return Ended(state="stopped", reason=stop_reason or node.stop_reason)

        return Ended(state="succeeded")

    first_stopped = _first_stopped_from_outside(nodes, signalled_at)
    if (
        first_stopped
        and not stop_reason
        and all(error.time > first_stopped.stop_requested_at for error in errors)
    ):
        return Ended(state="stopped", reason=first_stopped.stop_reason)

    if errors:
        cause = first_cause(errors, finished_ranks)
        if cause is None:
            return Ended(state="failed", reason="")
        return Ended(state="failed", reason=f"{process_name(cause)} failed", error=cause)

    if stop_reason:
        if any(node.forced or node.exit_code == -signal.SIGKILL for node in nodes):
            stop_reason += " (by force, after the grace period)"
        return Ended(state="stopped", reason=stop_reason)

    return _unexplained(first_failed)


def _first_stopped_from_outside(nodes: Sequence[Node], signalled_at: float) -> Node | None:
    """Return the node that was first stopped from outside.

    Later errors of its peers are consequences.
    """
    stopped = [node for node in nodes if node.stopped and 0 < node.stop_requested_at < signalled_at]
    return min(stopped, key=lambda node: node.stop_requested_at, default=None)


def _unexplained(node: Node | None) -> Ended:
    """Return the outcome if the first failed launcher reported no cause.

    Raise RuntimeError if no launcher failed.
    """
    if node is None or node.exit_code is None:
        raise RuntimeError("no launcher failed or stopped, but not all succeeded")

    code = node.exit_code
    if code == STOPPED:
        return Ended(state="stopped", reason=node.stop_reason)

    if code < 0:
        how = f"was killed by {signal.Signals(-code).name}"
    else:
        how = f"exited with code {code}"

    return Ended(state="failed", reason=f"the launcher of node {node.rank} {how}; see its log")
