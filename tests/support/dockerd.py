"""A separate Docker engine that a test may kill and restart without disturbing the one on the
machine.
"""

from __future__ import annotations

import io
import os
import shutil
import socket
import subprocess
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from docker.client import DockerClient

from cloudtrain.providers.docker.container_spec import Bind
from tests.support.waiting import eventually

IMAGE = "cloudtrain-test-empty:1"
NETWORK = "cloudtrain-test-own"
START_SECONDS = 60


class Dockerd:
    """One engine with separate folders, socket and network."""

    def __init__(self, folder: Path, *options: str) -> None:
        self.folder = folder
        self.options = options
        self.host = f"unix://{folder}/sock"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it, and wait until it answers."""
        folder = self.folder
        # Its bridges and its firewall are in a separate network: on the machine's, it would
        # remove `docker0`.
        argv = ["unshare", "--net", "dockerd", "--host", self.host, "--pidfile", f"{folder}/pid"]
        argv += ["--data-root", f"{folder}/data", "--exec-root", f"{folder}/exec"]
        with (folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [*argv, *self.options],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                env={**os.environ, "PATH": f"{os.environ['PATH']}:/usr/sbin:/sbin"},
            )
        try:
            eventually(self._answers, START_SECONDS)
        except (TimeoutError, RuntimeError):
            pytest.skip(
                f"no engine of its own can be started here: {(folder / 'log').read_text()[-500:]}"
            )

    def end(self) -> None:
        """Stop it, and wait until it is gone."""
        if self._process:
            self._process.terminate()
            self._process.wait(START_SECONDS)

    def clear(self) -> None:
        """Remove all containers and unused networks, if it answers."""
        with suppress(RuntimeError):
            if self._answers():
                with self.client() as client:
                    for container in client.containers.list(all=True):
                        container.remove(force=True, v=True)
                    client.networks.prune()

    @contextmanager
    def client(self) -> Iterator[DockerClient]:
        """A client of it."""
        client = DockerClient(base_url=self.host, version="auto")
        try:
            yield client
        finally:
            client.close()

    def _answers(self) -> bool:
        if self._process is None or self._process.poll() is not None:
            raise RuntimeError("it ended")
        try:
            with socket.socket(socket.AF_UNIX) as connection:
                connection.connect(self.host.removeprefix("unix://"))
                connection.sendall(b"GET /_ping HTTP/1.0\r\n\r\n")
                return connection.recv(4096).partition(b"\r\n")[0].endswith(b"200 OK")
        except OSError:
            return False


@contextmanager
def own_dockerd(*options: str) -> Iterator[Dockerd]:
    """Provide an engine with an empty image and a network.

    Skip if it cannot start; remove everything.
    """
    if os.geteuid() != 0:
        pytest.skip("only root can start a Docker engine of its own")
    if shutil.which("dockerd", path=f"{os.environ['PATH']}:/usr/sbin:/sbin") is None:
        pytest.skip("there is no dockerd here")
    folder = Path(tempfile.mkdtemp(prefix="ct-dockerd-", dir="/tmp"))
    engine = Dockerd(folder, *options)
    try:
        engine.start()
        with engine.client() as client:
            client.api.import_image_from_data(_empty_archive(), *IMAGE.split(":"))
            client.networks.create(NETWORK, driver="bridge")
        yield engine
    finally:
        engine.clear()
        engine.end()
        for line in Path("/proc/mounts").read_text().splitlines():
            if (mounted := line.split(" ")[1]).startswith(f"{folder}/"):
                subprocess.run(["umount", "--lazy", mounted], check=False)
        shutil.rmtree(folder, ignore_errors=True)


def of_this_machine() -> tuple[Bind, ...]:
    """The mounts that an empty image needs to run the shell of this machine."""
    folders = ("/bin", "/lib", "/lib64", "/usr")
    return tuple(
        Bind(source=name, target=name, read_only=True) for name in folders if Path(name).exists()
    )


def _empty_archive() -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        tar.addfile(tarfile.TarInfo("nothing"), io.BytesIO())
    return buffer.getvalue()
