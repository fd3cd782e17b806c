"""One mapping per platform: from what it gives a node to the node's `Place`. Standard library only."""

from __future__ import annotations

import socket
import time
from typing import Callable, Mapping

from cloudtrain_launcher.contract import JOB_FILE, NodeContext
from cloudtrain_launcher.environment import job_folders, require_number, require_text
from cloudtrain_launcher.platforms.azureml import azureml as azureml_node
from cloudtrain_launcher.platforms.sagemaker import failure_file
from cloudtrain_launcher.platforms.sagemaker import sagemaker as sagemaker_node

PLATFORM = "CLOUDTRAIN_PLATFORM"


def plain_context(environ: Mapping[str, str]) -> NodeContext:
    """Any machine: everything is said by variables, as the provider that starts the launcher sets them."""
    return NodeContext(
        platform="plain",
        node_rank=require_number(environ, "CLOUDTRAIN_NODE_RANK"),
        nodes=require_number(environ, "CLOUDTRAIN_NODES"),
        master_addr=require_text(environ, "CLOUDTRAIN_MASTER_ADDR"),
        master_port=require_number(environ, "CLOUDTRAIN_MASTER_PORT"),
        address=environ.get("CLOUDTRAIN_NODE_ADDR", ""),
        interface=environ.get("CLOUDTRAIN_INTERFACE", ""),
        **job_folders(environ),
        failure_file="",
        job_file=require_text(environ, JOB_FILE),
        stop_file=environ.get("CLOUDTRAIN_STOP_FILE", ""),
    )


PLATFORMS: dict[str, Callable[[Mapping[str, str]], NodeContext]] = {
    "plain": plain_context,
    "sagemaker": sagemaker_node,
    "azureml": azureml_node,
}
FAILURE_FILES: dict[str, Callable[[Mapping[str, str]], str]] = {"sagemaker": failure_file}
"""Where a platform reads the reason of a failure: known even where the node's place is not."""


def find_node_context(environ: Mapping[str, str]) -> NodeContext:
    """This node's place, by the platform that the job was rendered for; RuntimeError if it cannot be told."""
    name = environ.get(PLATFORM, "plain")
    if name not in PLATFORMS:
        raise RuntimeError(f"{PLATFORM} is {name!r}; known: {', '.join(PLATFORMS)}")
    return PLATFORMS[name](environ)


def find_failure_file(environ: Mapping[str, str]) -> str:
    """Where this platform reads the reason of a failure; empty: nowhere."""
    find = FAILURE_FILES.get(environ.get(PLATFORM, "plain"))
    return find(environ) if find else ""


def wait_for_dns(host: str, timeout_seconds: float = 900, cancelled: Callable[[], bool] = lambda: False) -> None:
    """Wait until a peer's name resolves; on SageMaker it may lag by minutes. TimeoutError after the deadline.

    `until`: a reason to wait no longer, such as a stop.
    """
    deadline = time.monotonic() + timeout_seconds
    delay = 0.2
    while not cancelled():
        try:
            socket.getaddrinfo(host, None)
            return
        except OSError as error:
            if time.monotonic() > deadline:
                raise TimeoutError(f"{host} did not resolve within {timeout_seconds:.0f} s: {error}") from None
        time.sleep(delay)
        delay = min(delay * 2, 1)
