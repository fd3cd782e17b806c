"""Fixtures of the container tests: one node's container without torch, run by the process that
watches it.
"""

from __future__ import annotations

import json
import os
import subprocess
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from cloudtrain.providers.docker.container_spec import (
    DATA_LABEL,
    NODE_LABEL,
    RUN_LABEL,
    Bind,
    ContainerSpec,
)
from cloudtrain.providers.local.processes import run_module
from tests.support.engine import left_of
from tests.support.waiting import eventually

if TYPE_CHECKING:
    from docker.client import DockerClient

MakeSpec = Callable[..., ContainerSpec]
Begin = Callable[..., "subprocess.Popen[bytes]"]


@pytest.fixture
def make_spec(docker: DockerClient, image: str, tmp_path: Path) -> Iterator[MakeSpec]:
    """Return a container of a small Python program, on its own network, with a folder at /out;
    remove everything.
    """
    labels = {RUN_LABEL: "run-1", DATA_LABEL: str(tmp_path), NODE_LABEL: "0"}
    network = f"cloudtrain-test-{uuid.uuid4().hex[:12]}"
    made = docker.networks.create(network, labels=labels)
    (tmp_path / "out").mkdir()

    def make(program: str, **changes: Any) -> ContainerSpec:
        values: dict[str, Any] = {
            "node": 0,
            "image": image,
            "name": f"{network}-node-00",
            "host": "node-00",
            "network": network,
            "argv": ("python3", "-u", "-c", program),
            "folder": "/",
            "env": {"GREETING": "hello"},
            "secrets": (),
            "binds": (Bind(source=str(tmp_path / "out"), target="/out"),),
            "labels": labels,
            "user": f"{os.getuid()}:{os.getgid()}",
            "grace_seconds": 30,
        }
        return ContainerSpec(**{**values, **changes})

    yield make
    try:  # whatever became of it
        eventually(lambda: left_of(docker, tmp_path) == [network])
    finally:
        for container in docker.containers.list(
            all=True, filters={"label": f"{DATA_LABEL}={tmp_path}"}
        ):
            container.remove(force=True, v=True)
        made.remove()


@pytest.fixture
def begin(tmp_path: Path) -> Iterator[Begin]:
    """Start the process that runs a container, as the supervisor does."""
    begun: list[subprocess.Popen[bytes]] = []

    def start(spec: ContainerSpec, **env: str) -> subprocess.Popen[bytes]:
        file = tmp_path / "container.json"
        file.write_text(json.dumps(spec.to_json()))
        argv = [*run_module("docker.node"), str(file)]
        environment = {**os.environ, "CLOUDTRAIN_SUPERVISOR_PID": str(os.getpid()), **env}
        begun.append(
            subprocess.Popen(
                argv, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
            )
        )
        return begun[-1]

    yield start
    for process in begun:
        process.kill()
        process.communicate()
