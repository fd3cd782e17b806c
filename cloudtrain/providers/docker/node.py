"""Run one container of a run, from creation to removal, as a process of the supervisor;
copy its output and note how it ends.

    python -m cloudtrain.providers.docker.node SPEC.json

Its output and exit code are the container's. SIGTERM is forwarded, and SIGKILL follows before the
grace period ends. It ends with its supervisor. Secrets come in its environment as
CLOUDTRAIN_SECRET_<NAME> and are set in the container's, where users of the engine can read them
(`docker inspect`) while it runs.
"""

from __future__ import annotations

import json
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cloudtrain.diagnosis.rule import KILLED_FROM_OUTSIDE
from cloudtrain.errors import CloudError, CloudtrainError
from cloudtrain.providers.docker.connect import docker_engine
from cloudtrain.providers.docker.container_spec import SECRET, ContainerSpec, spec_from_json
from cloudtrain.providers.local.processes import STOPPED, SUPERVISOR_PID
from cloudtrain.runs.files import strict_json
from cloudtrain.runs.logs import EVENT_MARK
from cloudtrain_wire.events import Cause, Error, Event, NodeEnded, parse
from cloudtrain_wire.parent_death import set_parent_death_signal
from cloudtrain_wire.sizes import format_size

if TYPE_CHECKING:
    from cloudtrain.providers.docker.engine import Container, Engine, ExitStatus

MAX_LINE_BYTES = 64 * 1024
"""Maximum length of an unfinished line; a longer one is forwarded unfinished."""

KILLED = 128 + signal.SIGKILL

REMIND_SECONDS = 2
"""Pause between two SIGTERMs: the first is lost if the program lacks a handler."""

KILL_BEFORE_SECONDS = 1.5
"""Kill the container this long before the supervisor kills this process."""


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
                lines.append(unfinished)
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
        if error:
            self._fail(type(error).__name__, error.message, error.hint)
        else:
            self._fail("lost", "its container was lost")

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
                code,
                memory_cause,
                stop_requested=stop_requested,
                forced=forced,
            )

        error = report.error
        if error is not None and (
            _is_sigkill(error) or (memory_cause and "DataLoader worker" in error.message)
        ):
            self._write_event(report.replace(error=_with_memory_cause(error, memory_cause)))
        elif report.outcome == "stopped" and not stop_requested:
            by = "by docker stop, or by a signal from outside"
            self._write_event(report.replace(stopped_by=by))

        return code

    def _report_end(
        self,
        code: int,
        memory_cause: str,
        *,
        stop_requested: bool,
        forced: bool,
    ) -> int:
        """Report the end of a container without a launcher's report."""
        if stop_requested:
            self._write_event(NodeEnded(outcome="stopped", forced=forced))
            return code

        message = _exit_message(code, self._last_line.decode("utf-8", "replace").strip()[:200])
        hint = None
        if memory_cause:
            message += f" ({memory_cause})"
        elif code == KILLED:
            hint = KILLED_FROM_OUTSIDE

        exception = "SIGKILL" if code == KILLED else "exit"
        self._fail(exception, message, hint)
        return code or 1

    def _fail(self, exception: str, message: str, hint: str | None = None) -> None:
        time_now = round(time.time(), 3)
        cause = Cause(
            rank=-1,
            node=self.node,
            time=time_now,
            exception=exception,
            message=message,
            attempt=0,
        )
        if hint:
            cause = cause.replace(hint=hint)

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
            time=round(time.time(), 3),
            node=self.node,
            rank=-1,
            seq=time.time_ns(),
        )
        document = strict_json(sent.to_json(), separators=(",", ":"))
        self._write(EVENT_MARK + document.encode() + b"\n")

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
    message = error.message.removesuffix(" (out of host memory?)")
    message = message.removesuffix(": out of host memory")
    if memory_cause:
        return error.replace(message=f"{message} ({memory_cause})")
    return error.replace(message=message, hint=error.hint or KILLED_FROM_OUTSIDE)


def _is_sigkill(error: Cause) -> bool:
    """Return True if the cause is a killed process: a rank, or a worker of its DataLoader."""
    text = f"{error.exception}: {error.message}"
    return "SIGKILL" in text or "signal: Killed" in text


def _exit_message(code: int, last_line: str) -> str:
    if code == 0:
        return "its container ended well, but the launcher never spoke: the image's python3 is none"
    if code - 128 in list(signal.Signals):
        return f"its container was killed by {signal.Signals(code - 128).name}"
    if last_line:
        return f"its container exited with code {code}: {last_line}"

    return f"its container exited with code {code} and said nothing"


class DockerNode:
    """One container and its output."""

    def __init__(self, spec: ContainerSpec, secrets: Mapping[str, str]) -> None:
        self.spec = spec
        self.secrets = secrets
        self.output = ContainerOutput(spec.node, sys.stdout.fileno())
        self.stop_requested = False
        self.forced = False
        self.exit_status: ExitStatus | None = None
        self.last_error: CloudtrainError | None = None
        self._over = threading.Event()
        self._woken, self._wake = os.pipe()
        os.set_blocking(self._wake, False)
        os.set_blocking(self._woken, False)

    def listen(self) -> None:
        """Forward SIGTERM from now on."""
        signal.signal(signal.SIGTERM, lambda *_: self._request_stop())
        signal.set_wakeup_fd(self._wake, warn_on_full_buffer=False)

    def run(self) -> int:
        """Run the container, remove it in any case, and return the exit code."""
        try:
            with docker_engine() as engine:
                if self.stop_requested:
                    return STOPPED
                with self._started(engine) as container:
                    self._watch(container)
        except CloudtrainError as error:
            self.last_error = self.last_error or error
        if self.exit_status is None:
            return self.output.report_failure(self.last_error)

        memory_cause = ""
        if self.exit_status.out_of_memory:
            memory_cause = "out of host memory"
            if limit := self.spec.memory_bytes:
                memory_cause += f": its container reached the limit of {format_size(limit)}"

        return self.output.finish(
            self.exit_status.code,
            memory_cause,
            stop_requested=self.stop_requested,
            forced=self.forced,
        )

    @contextmanager
    def _started(self, engine: Engine) -> Iterator[Container]:
        """Start the container, without its limits if necessary; remove it afterwards."""
        for spec in (self.spec, replace(self.spec, ulimits={})):
            container = engine.create(spec, self.secrets)
            try:
                try:
                    container.start()
                except CloudError as error:
                    if error.code != "ulimits" or not spec.ulimits:
                        raise
                    self.output.log(f"{error.message}; {error.hint}")
                    continue
                yield container
                return
            finally:
                container.remove()

    def _watch(self, container: Container) -> None:
        """Wait until the container has ended, and forward a stop."""
        follower = threading.Thread(
            target=self._follow,
            args=(container,),
            daemon=True,
            name="output",
        )
        follower.start()
        since = reminded = 0.0

        grace = max(1.0, self.spec.grace_seconds - KILL_BEFORE_SECONDS)
        while not self._over.is_set():
            time_now = time.monotonic()
            if self.stop_requested:
                since = since or time_now
                with suppress(CloudtrainError):  # `_follow` reports a lost engine
                    if time_now - since > grace:
                        self.forced = True
                        container.signal("SIGKILL")
                    elif time_now - reminded > REMIND_SECONDS:
                        reminded = time_now
                        container.signal("SIGTERM")
            timeout = 0.5 if self.stop_requested else None
            select.select([self._woken], [], [], timeout)
            with suppress(BlockingIOError):
                os.read(self._woken, 4096)

        follower.join()

    def _follow(self, container: Container) -> None:
        """Forward the container's output, then wait for its end. Runs in a thread."""
        try:
            for out, error_output in container.output():
                if not self.output.forward(out or b"", error_output or b""):
                    self._request_stop()  # no reader: the supervisor is gone
            self.exit_status = container.exit_status()
        except CloudtrainError as error:
            self.last_error = error
        finally:
            self.output.flush()
            self._over.set()
            self._wake_up()

    def _request_stop(self) -> None:
        self.stop_requested = True
        self._wake_up()

    def _wake_up(self) -> None:
        with suppress(BlockingIOError):
            os.write(self._wake, b"\0")


def main(argv: list[str]) -> int:
    """Run the container described in SPEC.json; return its exit code."""
    document: Any = json.loads(Path(argv[0]).read_text(encoding="utf-8"))
    spec = spec_from_json(document)
    node = DockerNode(spec, {name: os.environ[SECRET + name] for name in spec.secrets})
    node.listen()
    if supervisor := os.environ.get(SUPERVISOR_PID):
        set_parent_death_signal(int(supervisor), signal.SIGTERM)

    return node.run()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
