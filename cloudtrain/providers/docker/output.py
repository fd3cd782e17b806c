"""Forward a container's output line by line, and report ends that its launcher could not."""

from __future__ import annotations

import os
import signal
import time

from cloudtrain.diagnosis.remedies import KILLED_FROM_OUTSIDE
from cloudtrain.errors import CloudtrainError
from cloudtrain.runs.files import strict_json
from cloudtrain.runs.logs import EVENT_MARK
from cloudtrain_launcher.events import Cause, Error, Event, NodeEnded, parse

MAX_LINE_BYTES = 64 * 1024
"""Maximum length of an unfinished line; a longer one is forwarded unfinished."""

KILLED = 128 + signal.SIGKILL


class ContainerOutput:
    """Forwards the output of a node's container and adds reports of the engine."""

    def __init__(self, node: int, out: int) -> None:
        self.node = node
        self._out = out
        self._unfinished = [b"", b""]
        """Unfinished line of each stream: standard output, standard error."""
        self.node_ended: NodeEnded | None = None
        """Report of the launcher's end."""
        self._last_line = b""
        """Last line that is not an event: the reason if a launcher never started."""

    def forward(self, *streams: bytes) -> bool:
        """Forward complete lines of standard output and error; return False without a reader."""
        is_read = True
        for number, data in enumerate(streams):
            *lines, unfinished = (self._unfinished[number] + data).split(b"\n")
            if len(unfinished) > MAX_LINE_BYTES:
                lines = [*lines, unfinished]
                unfinished = b""
            self._unfinished[number] = unfinished
            is_read = self._forward_lines(lines) and is_read
        return is_read

    def flush(self) -> None:
        """Forward the unfinished lines."""
        self._forward_lines([unfinished for unfinished in self._unfinished if unfinished])
        self._unfinished = [b"", b""]

    def log(self, text: str) -> None:
        """Add a line of ours to the node's log."""
        self._write(f"[node {self.node}] {text}\n".encode("utf-8", "replace"))

    def report_failure(self, error: CloudtrainError | None) -> int:
        """Report a container that could not be started or watched; return the exit code."""
        message = error.message if error else "its container was lost"
        self._fail(
            type(error).__name__ if error else "lost", message, error.hint if error else None
        )
        return 1

    def finish(
        self,
        code: int,
        memory_cause: str = "",
        *,
        stop_requested: bool = False,
        forced: bool = False,
    ) -> int:
        """Complete the launcher's report with the engine's knowledge; return the exit code.

        `memory_cause`: why the kernel killed a process of the container; empty if it did not.
        `forced`: we killed it after the grace period.
        """
        if memory_cause:
            self.log(f"the kernel killed a process of this container: {memory_cause}")
        report = self.node_ended
        if report is None:
            return self._report_end(
                code, memory_cause, stop_requested=stop_requested, forced=forced
            )
        error = report.error
        if error is not None and (
            _is_sigkill(error) or (memory_cause and _is_dataloader_worker(error))
        ):
            self._write_event(report.replace(error=_with_memory_cause(error, memory_cause)))
        elif report.outcome == "stopped" and not stop_requested:
            by = "by docker stop, or by a signal from outside"
            self._write_event(report.replace(stopped_by=by))
        return code

    def _report_end(
        self, code: int, memory_cause: str, *, stop_requested: bool, forced: bool
    ) -> int:
        """Report the end of a container without a launcher's report."""
        if stop_requested:
            self._write_event(NodeEnded(outcome="stopped", forced=forced))
            return code
        message = _exit_message(code, self._last_line.decode("utf-8", "replace").strip()[:200])
        hint = KILLED_FROM_OUTSIDE if code == KILLED and not memory_cause else None
        message += f" ({memory_cause})" if memory_cause else ""
        self._fail("SIGKILL" if code == KILLED else "exit", message, hint)
        return code or 1

    def _fail(self, exception: str, message: str, hint: str | None = None) -> None:
        time_now = round(time.time(), 3)
        cause = Cause(
            rank=-1, node=self.node, time=time_now, exception=exception, message=message, attempt=0
        )
        cause = cause.replace(hint=hint) if hint else cause
        self._write_event(Error(**cause.to_json()))
        self._write_event(NodeEnded(outcome="failed", error=cause, forced=False))
        self.log(f"failed: {message}")

    def _forward_lines(self, lines: list[bytes]) -> bool:
        for line in lines:
            if line.startswith(EVENT_MARK) and b'"node_ended"' in line:
                event = parse(line[len(EVENT_MARK) :])
                if isinstance(event, NodeEnded):
                    self.node_ended = event.without("time", "node", "rank", "seq")
            elif line:
                self._last_line = line
        return self._write(b"".join(line + b"\n" for line in lines))

    def _write_event(self, event: Event) -> None:
        sent = event.replace(
            time=round(time.time(), 3), node=self.node, rank=-1, seq=time.time_ns()
        )
        self._write(
            EVENT_MARK + strict_json(sent.to_json(), separators=(",", ":")).encode() + b"\n"
        )

    def _write(self, text: bytes) -> bool:
        data = memoryview(text)
        try:
            while data:
                data = data[os.write(self._out, data) :]
        except OSError:
            return False
        return True


def _with_memory_cause(error: Cause, memory_cause: str) -> Cause:
    """Return the report of a killed process, with the engine's knowledge about its memory."""
    message = error.message.removesuffix(" (out of host memory?)").removesuffix(
        ": out of host memory"
    )
    if memory_cause:
        return error.replace(message=f"{message} ({memory_cause})")
    return error.replace(message=message, hint=error.hint or KILLED_FROM_OUTSIDE)


def _is_sigkill(error: Cause) -> bool:
    """Return True if the cause is a killed process: a rank, or a worker of its DataLoader."""
    text = f"{error.exception}: {error.message}"
    return "SIGKILL" in text or "signal: Killed" in text


def _is_dataloader_worker(error: Cause) -> bool:
    return "DataLoader worker" in error.message


def _exit_message(code: int, last_line: str) -> str:
    if code == 0:
        return "its container ended well, but the launcher never spoke: the image's python3 is none"
    if code - 128 in list(signal.Signals):
        return f"its container was killed by {signal.Signals(code - 128).name}"
    return f"its container exited with code {code}" + (
        f": {last_line}" if last_line else " and said nothing"
    )
