"""What this machine has: cores; GPUs as the driver counts them, before torch is there; EFA. Standard library only."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path


def cores() -> int:
    """Those that this process may use, which may be fewer than the machine has."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def visible_gpus() -> int:
    """GPUs that CUDA would show, `CUDA_VISIBLE_DEVICES` and MIG honoured; 0 without a driver."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return 0
    count = ctypes.c_int(0)
    if driver.cuInit(0) != 0 or driver.cuDeviceGetCount(ctypes.byref(count)) != 0:
        return 0
    return count.value


def has_efa() -> bool:
    """Whether AWS's network adapter is there: told to use it where it is not, libfabric gives up or hangs."""
    return any(Path("/dev/infiniband").glob("uverbs*"))


def efa_folders(root: str = "/opt/amazon") -> tuple[str, ...]:
    """Where an image keeps NCCL's plug-in for EFA and the libfabric that it loads, as AWS's installer lays them out."""
    found = [*Path(root, "ofi-nccl").rglob("libnccl-net*.so"), *Path(root, "efa").rglob("libfabric.so*")]
    return tuple(dict.fromkeys(str(path.parent) for path in sorted(found, reverse=True)))


if __name__ == "__main__":
    print(visible_gpus())
