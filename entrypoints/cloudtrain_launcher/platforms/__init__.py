"""Mappings of each platform's variables to a `NodeContext`. Standard library only."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Mapping

from cloudtrain_launcher.contract import JOB_FILE, PUBLISHED, RESUME_DIR, NodeContext
from cloudtrain_launcher.environment import job_folders, require_number, require_text
from cloudtrain_launcher.platforms.azureml import azureml_context
from cloudtrain_launcher.platforms.sagemaker import failure_file, sagemaker_context

PLATFORM = "CLOUDTRAIN_PLATFORM"


def plain_context(environ: Mapping[str, str]) -> NodeContext:
    """Describe any machine by our own variables, which the provider sets.

    Raise RuntimeError if a variable is missing or not a number.
    """
    node_rank = require_number(environ, "CLOUDTRAIN_NODE_RANK")
    nodes = require_number(environ, "CLOUDTRAIN_NODES")

    return NodeContext(
        platform="plain",
        node_rank=node_rank,
        nodes=nodes,
        master_addr=require_text(environ, "CLOUDTRAIN_MASTER_ADDR"),
        master_port=require_number(environ, "CLOUDTRAIN_MASTER_PORT"),
        address=environ.get("CLOUDTRAIN_NODE_ADDR", ""),
        interface=environ.get("CLOUDTRAIN_INTERFACE", ""),
        **job_folders(environ)._asdict(),
        failure_file="",
        job_file=require_text(environ, JOB_FILE),
        resume_dir=environ.get(RESUME_DIR, ""),
        stop_file=environ.get("CLOUDTRAIN_STOP_FILE", ""),
        published=environ.get(PUBLISHED, ""),
    )


PLATFORMS: dict[str, Callable[[Mapping[str, str]], NodeContext]] = {
    "plain": plain_context,
    "sagemaker": sagemaker_context,
    "azureml": azureml_context,
}


def find_node_context(environ: Mapping[str, str]) -> NodeContext:
    """Return the context of the platform in CLOUDTRAIN_PLATFORM. Raise RuntimeError if invalid."""
    name = environ.get(PLATFORM, "plain")
    if name not in PLATFORMS:
        raise RuntimeError(f"{PLATFORM} is {name!r}; known: {', '.join(PLATFORMS)}")

    return PLATFORMS[name](environ)


def find_failure_file(environ: Mapping[str, str]) -> str:
    """Return the path of the platform's failure file, even without a node context; empty: none."""
    if environ.get(PLATFORM) != "sagemaker":
        return ""

    return failure_file(environ)


def wait_for_dns(
    host: str, timeout_seconds: float = 900, cancelled: Callable[[], bool] = lambda: False
) -> None:
    """Wait until a host name resolves, which may take minutes on SageMaker.

    Raise TimeoutError after `timeout_seconds`. Return early if `cancelled()` is true.
    """
    deadline = time.monotonic() + timeout_seconds
    delay = 0.2  # seconds

    while not cancelled():
        try:
            socket.getaddrinfo(host, None)
            return
        except OSError as error:
            if time.monotonic() > deadline:
                raise TimeoutError(
                    f"{host} did not resolve within {timeout_seconds:.0f} s: {error}"
                ) from None

        time.sleep(delay)
        delay = min(delay * 2, 1)
