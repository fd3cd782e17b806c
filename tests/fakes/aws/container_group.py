"""The containers of one attempt at a job: started together, signalled together, ended together."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO

from cloudtrain.planning.sagemaker import (
    FAILURE_CHARACTERS,
    FAILURE_FILE,
    NodeContainer,
    TrainingJob,
)
from cloudtrain.providers.rehearsal import sagemaker as container_emulator
from cloudtrain.providers.rehearsal.base import node_addresses
from cloudtrain_launcher.host import free_port
from tests.fakes.containers import Container as Process

WriteLine = Callable[[str, bytes], None]
"""Takes a line of the log stream of that name."""


class Node(Process):
    """The container of one node. OSError when there is no such program."""

    def __init__(
        self,
        host: str,
        root: Path,
        argv: Sequence[str],
        env: Mapping[str, str],
        write_line: WriteLine,
    ) -> None:
        stream = f"{host}-{int(time.time() * 1000)}"

        def read_output(lines: IO[bytes]) -> None:
            for line in lines:
                if text := line.rstrip(b"\r\n"):
                    write_line(stream, text)

        # Not in the tree: an image's own working folder is elsewhere.
        super().__init__(host, root, argv, env, cwd=Path(env["HOME"]), read_output=read_output)

    def failure(self) -> str:
        """The content of its failure file, cut to the length that SageMaker reads."""
        try:
            text = (self.root / FAILURE_FILE).read_text("utf-8", "replace")
        except OSError:
            return ""
        return text[:FAILURE_CHARACTERS]


class ContainerGroup:
    """All containers of one attempt."""

    def __init__(
        self, job: TrainingJob, folder: Path, env: Mapping[str, str], write_line: WriteLine
    ) -> None:
        self.job = job
        self.nodes = list[Node]()
        self.roots = [folder / container.host / "ml" for container in job.containers]
        self._folder = folder
        self._env = env
        self._write_line: WriteLine = lambda stream, line: write_line(f"{job.name}/{stream}", line)

    def build(self) -> None:
        """A fresh tree for each, with the channels still empty."""
        for container, root in zip(self.job.containers, self.roots, strict=True):
            root.mkdir(parents=True)
            container_emulator.create_folders(self.job, container, root, {})

    def start(self) -> None:
        """Start all containers, each on its own loopback address."""
        addresses = node_addresses(len(self.roots))
        port = free_port()
        hosts = self._folder / "hosts"
        hosts.write_text(container_emulator.hosts_text(self.job.hosts, addresses))
        for container, root, address in zip(
            self.job.containers, self.roots, addresses, strict=True
        ):
            argv, env = container_emulator.command(
                container,
                root,
                hosts_file=hosts,
                address=address,
                master=addresses[0],
                private=container_emulator.has_namespaces(),
            )
            # One machine has one set of ports, however many containers are on it.
            environment = (
                self._environment(container, root) | env | {"CLOUDTRAIN_MASTER_PORT": str(port)}
            )
            self.nodes.append(Node(container.host, root, argv, environment, self._write_line))

    def poll(self) -> bool:
        """Return whether all containers have ended."""
        finished = [node.poll() for node in self.nodes]
        return all(finished)

    def terminate(self) -> None:
        """Send SIGTERM to all running containers."""
        for node in self.nodes:
            node.terminate()

    def end(self) -> None:
        """Send SIGKILL to all running containers."""
        for node in self.nodes:
            if node.code is None:
                node.end()

    def _environment(self, container: NodeContainer, root: Path) -> dict[str, str]:
        home = root.parent / "home"
        home.mkdir(exist_ok=True)
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.defpath}"
        return {"PATH": path, "HOME": str(home), **self._env, **container.env}
