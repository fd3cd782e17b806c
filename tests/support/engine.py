"""The Docker engine that tests run containers with, an image for them, and what runs leave behind."""

from __future__ import annotations

import io
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
