"""The Docker engine that tests run containers with, its image and its registry."""

from __future__ import annotations

import io
import json
import shutil
import socket
import subprocess
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from docker.client import DockerClient
from docker.errors import ImageNotFound

from cloudtrain.errors import CloudError
from cloudtrain.providers.docker.connect import ANSWER_SECONDS
from cloudtrain.providers.docker.container_spec import DATA_LABEL
from cloudtrain.providers.docker.engine import connect
from cloudtrain_wire.ports import free_port
from tests.support.waiting import eventually

# The Docker engine that tests run containers with, an image for them, and what runs leave behind.

BASE = "cloudtrain-cpu-base:local"
"""Python 3 and torch for the CPU; tests build upon it and never pull."""

DOCKERFILE = f"""
FROM {BASE}
VOLUME /scratch
ENTRYPOINT ["/bin/false"]
"""
"""A Dockerfile with a volume, which must not stay behind, and an entrypoint, which must not start.
"""


@contextmanager
def engine_and_image() -> Iterator[tuple[DockerClient, str]]:
    """A client, and an image of these tests alone. Skips, with the reason, where either cannot be
    had.
    """
    try:
        client = connect(ANSWER_SECONDS)
    except CloudError as error:
        pytest.skip(error.message)
    image = f"cloudtrain-test:{uuid.uuid4().hex[:12]}"  # several tests of a process have one
    try:
        client.images.get(BASE)
        client.images.build(fileobj=io.BytesIO(DOCKERFILE.encode()), tag=image, rm=True)
    except ImageNotFound:
        client.close()
        pytest.skip(f"image {BASE} is missing here")
    try:
        yield client, image
    finally:
        with suppress(ImageNotFound):  # others who use this engine may have cleaned up
            client.images.remove(image, force=True)
        client.close()


def left_of(client: DockerClient, data_dir: Path) -> list[str]:
    """Names of the containers, networks and volumes that belong to runs of a data folder."""
    filters = {"label": f"{DATA_LABEL}={data_dir}"}
    engines: list[Any] = [
        *client.containers.list(all=True, filters=filters, ignore_removed=True),
        *client.networks.list(filters=filters),
        *client.volumes.list(filters=filters),
    ]
    return [resource.name for resource in engines]


def running(client: DockerClient, data_dir: Path, run: str) -> dict[int, Any]:
    """The containers of a run, by node."""
    filters = {"label": [f"{DATA_LABEL}={data_dir}", f"cloudtrain.run={run}"]}
    containers = client.containers.list(filters=filters, ignore_removed=True)
    return {int(container.labels["cloudtrain.node"]): container for container in containers}


# The registry program that engines push to in tests: a process on a free port.


@contextmanager
def registry(folder: Path) -> Iterator[str]:
    """Host and port of a registry whose files are in that folder. Skips where the program is not
    installed.
    """
    program = shutil.which("docker-registry") or shutil.which("registry")
    if program is None:
        pytest.skip("docker-registry is not installed")
    host = "127.0.0.1"
    port = free_port()
    configuration = {
        "version": "0.1",
        "log": {"level": "error", "accesslog": {"disabled": True}},
        "storage": {"filesystem": {"rootdirectory": str(folder / "images")}},
        "http": {"addr": f"{host}:{port}"},
    }
    (folder / "config.yml").write_text(json.dumps(configuration))
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [program, "serve", str(folder / "config.yml")], stdout=log, stderr=log
        )

    def answers() -> bool:
        assert process.poll() is None, (folder / "log").read_text()
        with socket.socket() as client:
            return client.connect_ex((host, port)) == 0

    try:
        eventually(answers)
        yield f"{host}:{port}"
    finally:
        process.kill()
        process.wait()
