"""One mapping per platform: from what it gives a node to the node's `Place`. Standard library only."""

from __future__ import annotations

import socket
import time
from typing import Callable, Mapping

from contract import Place

INPUT = "CLOUDTRAIN_INPUT_"


def plain(environ: Mapping[str, str]) -> Place:
    """Any machine: everything is said by variables, as the local and docker providers set them."""
    return Place(
        platform="plain",
        node_rank=int(environ["CLOUDTRAIN_NODE_RANK"]),
        nodes=int(environ["CLOUDTRAIN_NODES"]),
        master_addr=environ["CLOUDTRAIN_MASTER_ADDR"],
        master_port=int(environ["CLOUDTRAIN_MASTER_PORT"]),
        address=environ.get("CLOUDTRAIN_NODE_ADDR", ""),
        interface=environ.get("CLOUDTRAIN_INTERFACE", ""),
        output_dir=environ["CLOUDTRAIN_OUTPUT_DIR"],
        model_dir=environ["CLOUDTRAIN_MODEL_DIR"],
        checkpoint_dir=environ["CLOUDTRAIN_CHECKPOINT_DIR"],
        inputs={key[len(INPUT) :]: value for key, value in environ.items() if key.startswith(INPUT)},
        failure_file="",
    )


PLATFORMS: dict[str, Callable[[Mapping[str, str]], Place]] = {"plain": plain}


def find_place(environ: Mapping[str, str]) -> Place:
    """This node's place, by the platform that the job was rendered for."""
    return PLATFORMS[environ.get("CLOUDTRAIN_PLATFORM", "plain")](environ)


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
        pause = min(pause * 2, 5)
