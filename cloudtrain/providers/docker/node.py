"""Run one container of a run, from creation to removal, as a process of the supervisor.

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

from cloudtrain.errors import CloudError, CloudtrainError
from cloudtrain.providers.docker.connect import docker_engine
from cloudtrain.providers.docker.container_spec import SECRET, ContainerSpec, spec_from_json
from cloudtrain.providers.docker.output import ContainerOutput
from cloudtrain.providers.local.processes import STOPPED, SUPERVISOR_PID
from cloudtrain.units import format_size
from cloudtrain_launcher.host import set_parent_death_signal

if TYPE_CHECKING:
    from cloudtrain.providers.docker.container import Container, ExitStatus
    from cloudtrain.providers.docker.engine import Engine

REMIND_SECONDS = 2
"""Pause between two SIGTERMs: the first is lost if the program lacks a handler."""

KILL_BEFORE_SECONDS = 1.5
"""Kill the container this long before the supervisor kills this process."""


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
            target=self._follow, args=(container,), daemon=True, name="output"
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
            select.select([self._woken], [], [], 0.5 if self.stop_requested else None)
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
