"""Settings of NCCL: the timeouts of collectives, and the priority of messages.

A collective of the first step waits for ranks that still compile or read their data, so it gets
half an hour; later ones get ten minutes, after which torch ends the job and writes down the last
collectives of each rank (`fetch` brings them). Not tried on GPUs: tests with gloo show the settings
that torch gets.
"""

from __future__ import annotations

from collections.abc import Iterable, MutableMapping
from datetime import timedelta
from typing import Any

import torch.distributed as dist
from torch.distributed import distributed_c10d

START_SECONDS = 1800.0
TRAINING_SECONDS = 600.0
"""Timeouts until the first step and afterwards: torch's defaults for gloo and for NCCL."""


def prefer_messages(environ: MutableMapping[str, str]) -> None:
    """Give all groups streams of high priority, unless the user has set the variable.

    A GPU then starts a message before the next kernel, so that peers wait less for it. Torch reads
    TORCH_NCCL_HIGH_PRIORITY when it makes a communicator (ProcessGroupNCCL.cpp), also for a device
    mesh, whose groups get no `ProcessGroupNCCL.Options` from here.
    """
    environ.setdefault("TORCH_NCCL_HIGH_PRIORITY", "1")


def groups() -> list[Any]:
    """Return the process groups of this rank, also of a device mesh.

    Torch does not list them publicly.
    """
    return list(distributed_c10d._world.pg_map)


def set_timeouts(groups: Iterable[Any], seconds: float) -> None:
    """Set the timeout of later collectives of groups of NCCL or gloo."""
    timeout = timedelta(seconds=seconds)
    for group in groups:
        if dist.get_backend(group) not in ("nccl", "gloo"):
            continue
        if hasattr(group, "set_timeout"):  # public since torch 2.13
            group.set_timeout(timeout)
        else:
            distributed_c10d._set_pg_timeout(timeout, group)
