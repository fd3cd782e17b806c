"""One mapping per platform: from what it gives a node to the node's `Place`. Standard library only."""

from __future__ import annotations

import socket
import time
from typing import Callable, Mapping

from cloudtrain_launcher.contract import JOB_FILE, Place
from cloudtrain_launcher.environment import folders, number, text
from cloudtrain_launcher.platforms.azureml import azureml as azureml_node
from cloudtrain_launcher.platforms.sagemaker import failure_file
from cloudtrain_launcher.platforms.sagemaker import sagemaker as sagemaker_node

PLATFORM = "CLOUDTRAIN_PLATFORM"


def plain(environ: Mapping[str, str]) -> Place:
    """Any machine: everything is said by variables, as the local and docker providers set them."""
    return Place(
        platform="plain",
        node_rank=number(environ, "CLOUDTRAIN_NODE_RANK"),
        nodes=number(environ, "CLOUDTRAIN_NODES"),
        master_addr=text(environ, "CLOUDTRAIN_MASTER_ADDR"),
        master_port=number(environ, "CLOUDTRAIN_MASTER_PORT"),
        address=environ.get("CLOUDTRAIN_NODE_ADDR", ""),
        interface=environ.get("CLOUDTRAIN_INTERFACE", ""),
        **folders(environ),
        failure_file="",
        job_file=text(environ, JOB_FILE),
    )


PLATFORMS: dict[str, Callable[[Mapping[str, str]], Place]] = {
    "plain": plain,
    "sagemaker": sagemaker_node,
    "azureml": azureml_node,
}
FAILURE_FILES: dict[str, Callable[[Mapping[str, str]], str]] = {"sagemaker": failure_file}
"""Where a platform reads the reason of a failure: known even where the node's place is not."""


def find_place(environ: Mapping[str, str]) -> Place:
    """This node's place, by the platform that the job was rendered for; RuntimeError if it cannot be told."""
    name = environ.get(PLATFORM, "plain")
    if name not in PLATFORMS:
        raise RuntimeError(f"{PLATFORM} is {name!r}; known: {', '.join(PLATFORMS)}")
    return PLATFORMS[name](environ)


def find_failure_file(environ: Mapping[str, str]) -> str:
    """Where this platform reads the reason of a failure; empty: nowhere."""
    find = FAILURE_FILES.get(environ.get(PLATFORM, "plain"))
    return find(environ) if find else ""


def wait_for_name(host: str, deadline_seconds: float = 900, until: Callable[[], bool] = lambda: False) -> None:
    """Wait until a peer's name resolves; on SageMaker it may lag by minutes. TimeoutError after the deadline.

    `until`: a reason to wait no longer, such as a stop.
    """
    deadline = time.monotonic() + deadline_seconds
    pause = 0.2
    while not until():
        try:
            socket.getaddrinfo(host, None)
            return
        except OSError as error:
            if time.monotonic() > deadline:
                raise TimeoutError(f"{host} did not resolve within {deadline_seconds:.0f} s: {error}") from None
        time.sleep(pause)
        pause = min(pause * 2, 1)
