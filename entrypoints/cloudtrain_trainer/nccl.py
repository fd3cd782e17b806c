"""What NCCL is told: how long a collective may take, and that messages go before computation.

A collective of the first step waits for ranks that still compile or read their data, so it gets
half an hour; later ones get ten minutes, after which torch ends the job and writes down the last
collectives of each rank (`fetch` brings them). Nothing here was seen on GPUs: tests show what torch
is told, with gloo.
"""

from __future__ import annotations

from collections.abc import Iterable, MutableMapping
from datetime import timedelta
from typing import Any

import torch.distributed as dist
from torch.distributed import distributed_c10d

START_SECONDS = 1800.0
TRAINING_SECONDS = 600.0
"""Until the first step is done, and afterwards: torch's own defaults for gloo and for NCCL."""


def prefer_messages(environ: MutableMapping[str, str]) -> None:
    """Have all groups use streams of high priority, unless the user said otherwise
    (`TORCH_NCCL_HIGH_PRIORITY=0`).

    A GPU then begins with a message that is ready before the next kernel that is, so that peers
    wait less for it. Torch reads the variable when it makes a communicator (ProcessGroupNCCL.cpp),
    also those of a device mesh, to whose groups no `ProcessGroupNCCL.Options` of ours come.
    """
    environ.setdefault("TORCH_NCCL_HIGH_PRIORITY", "1")


def groups() -> list[Any]:
    """The process groups that this rank is in. Torch has no public list of those that a device mesh
    has made.
    """
    return list(distributed_c10d._world.pg_map)


def set_timeouts(groups: Iterable[Any], seconds: float) -> None:
    """Set the timeout of later collectives of groups of NCCL or gloo; those that run already keep
    theirs.
    """
    timeout = timedelta(seconds=seconds)
    for group in groups:
        if dist.get_backend(group) not in ("nccl", "gloo"):
            continue
        if hasattr(group, "set_timeout"):  # public since torch 2.13
            group.set_timeout(timeout)
        else:
            distributed_c10d._set_pg_timeout(timeout, group)
