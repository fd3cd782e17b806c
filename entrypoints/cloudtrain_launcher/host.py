"""What the launcher asks of its machine: CPU cores, GPUs before torch is imported, EFA adapters, and that a child ends
with its parent. Standard library only; run as a program, it prints the number of GPUs.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from pathlib import Path


def available_cores() -> int:
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


def efa_library_dirs(root: str = "/opt/amazon") -> tuple[str, ...]:
    """Where an image keeps NCCL's plug-in for EFA and the libfabric that it loads, as AWS's installer lays them out."""
    found = [*Path(root, "ofi-nccl").rglob("libnccl-net*.so"), *Path(root, "efa").rglob("libfabric.so*")]
    return tuple(dict.fromkeys(str(path.parent) for path in sorted(found, reverse=True)))


_PR_SET_PDEATHSIG = 1


def set_parent_death_signal(parent: int, signum: int = signal.SIGKILL) -> None:
    """Ask the kernel for `signum` when the parent ends (prctl(2), Linux); elsewhere do nothing.

    Exits at once when `parent` is gone already. The signal comes when the parent's *thread* that started this
    process ends, so parents start their children from their main thread.
    """
    if sys.platform != "linux":
        return
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signum))
    if os.getppid() != parent:
        os._exit(128 + int(signum))


if __name__ == "__main__":
    print(visible_gpus())
