"""One node's container, from its creation to its removal, as a process that the supervisor watches like a launcher.

    python -m cloudtrain.local.docker_node SPEC.json

Its output is the container's, its exit code the container's; SIGTERM is passed on, and SIGKILL follows before the
grace period ends. It ends with its supervisor. Secrets come in its environment, as CLOUDTRAIN_SECRET_<NAME>, and go
into the container's: while that runs, whoever may ask the engine (`docker inspect`) can read them there.
"""

from __future__ import annotations

import json
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cloudtrain.building.engine import docker_engine
from cloudtrain.contracts.container import ContainerSpec, spec_from_json
from cloudtrain.errors import CloudtrainError
from cloudtrain.local.children import STOPPED, SUPERVISOR_PID, end_with
from cloudtrain.local.container_words import NodeWords
from cloudtrain.local.docker_stage import SECRET

if TYPE_CHECKING:
    from cloudtrain.clouds.docker import Container, Ending

REMIND_SECONDS = 2
"""Between two SIGTERMs: the first may come before the program in the container listens, and is lost then."""

KILL_BEFORE_SECONDS = 1.5
"""So long before the supervisor would kill us, we kill the container, and have its end to tell of."""


class DockerNode:
    """One container and the words that it says."""

    def __init__(self, spec: ContainerSpec, secrets: Mapping[str, str]) -> None:
        self.spec, self.secrets = spec, secrets
        self.words = NodeWords(spec.node, sys.stdout.fileno())
        self.asked = False
        self.forced = False
        self.ending: Ending | None = None
        self.trouble: CloudtrainError | None = None
        self._over = threading.Event()
        self._woken, self._wake = os.pipe()
        os.set_blocking(self._wake, False)
        os.set_blocking(self._woken, False)

    def listen(self) -> None:
        """From now on SIGTERM is passed on."""
        signal.signal(signal.SIGTERM, lambda *_: self._ask())
        signal.set_wakeup_fd(self._wake, warn_on_full_buffer=False)

    def run(self) -> int:
        """Everything, in order; the exit code. Whatever happens, the container is removed."""
        try:
            with docker_engine() as engine:
                if self.asked:
                    return STOPPED
                container = engine.create(self.spec, self.secrets)
                try:
                    container.start()
                    self._watch(container)
                finally:
                    container.remove()
        except CloudtrainError as error:
            self.trouble = self.trouble or error
        if self.ending is None:
            return self.words.trouble(self.trouble)
        return self.words.conclude(self.ending.code, self.ending.out_of_memory, self.spec, self.asked, self.forced)

    def _watch(self, container: Container) -> None:
        """Until the container is over; a stop is passed on meanwhile."""
        follower = threading.Thread(target=self._follow, args=(container,), daemon=True, name="output")
        follower.start()
        since = reminded = 0.0
        grace = max(1.0, self.spec.grace_seconds - KILL_BEFORE_SECONDS)
        while not self._over.is_set():
            now = time.monotonic()
            if self.asked:
                since = since or now
                if now - since > grace:
                    self.forced = True
                    container.signal("SIGKILL")
                elif now - reminded > REMIND_SECONDS:
                    reminded = now
                    container.signal("SIGTERM")
            select.select([self._woken], [], [], 0.5 if self.asked else None)
            with suppress(BlockingIOError):
                os.read(self._woken, 4096)
        follower.join()

    def _follow(self, container: Container) -> None:
        """In a thread of its own: pass on what the container prints, then wait for its end."""
        try:
            for out, error in container.output():
                if not self.words.hear(out or b"", error or b""):
                    self._ask()  # nobody reads it any more: the supervisor is gone
            self.words.flush()
            self.ending = container.ending()
        except CloudtrainError as error:
            self.trouble = error
        finally:
            self._over.set()
            self._nudge()

    def _ask(self) -> None:
        self.asked = True
        self._nudge()

    def _nudge(self) -> None:
        with suppress(BlockingIOError):
            os.write(self._wake, b"\0")


def main(argv: list[str]) -> int:
    """Run the container that SPEC.json describes."""
    document: Any = json.loads(Path(argv[0]).read_text(encoding="utf-8"))
    spec = spec_from_json(document)
    node = DockerNode(spec, {name: os.environ[SECRET + name] for name in spec.secrets})
    node.listen()
    if supervisor := os.environ.get(SUPERVISOR_PID):
        end_with(int(supervisor))
    return node.run()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
