"""The launcher's machine: CPU cores, GPUs, EFA adapters, ports. Standard library only.

It also makes processes end with their parent. Run as a program, it prints the number of GPUs.
"""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import sys
from pathlib import Path


def available_cores() -> int:
    """Return the number of CPU cores of this process, possibly fewer than the machine's."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def visible_gpus() -> int:
    """Return the number of GPUs that CUDA sees (`CUDA_VISIBLE_DEVICES`); 0 without a driver."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return 0

    count = ctypes.c_int(0)
    if driver.cuInit(0) != 0 or driver.cuDeviceGetCount(ctypes.byref(count)) != 0:
        return 0

    return count.value


def has_accelerator() -> bool:
    """Return whether the machine has a GPU or accelerator: NVIDIA, AMD, Neuron, Gaudi or TPU."""
    devices = ("kfd", "neuron*", "accel*")
    return visible_gpus() > 0 or any(
        path for pattern in devices for path in Path("/dev").glob(pattern)
    )


def has_efa() -> bool:
    """Return whether the machine has an EFA adapter; without one libfabric fails or hangs."""
    return any(Path("/dev/infiniband").glob("uverbs*"))


def efa_library_dirs(root: str = "/opt/amazon") -> tuple[str, ...]:
    """Return the folders of NCCL's EFA plug-in and its libfabric, from AWS's installer; or ()."""
    folders = [
        *Path(root, "ofi-nccl").rglob("libnccl-net*.so"),
        *Path(root, "efa").rglob("libfabric.so*"),
    ]
    return tuple(dict.fromkeys(str(path.parent) for path in sorted(folders, reverse=True)))


_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36


def adopt_orphans() -> None:
    """Make descendants whose parent ends children of this process (prctl(2)); Linux only.

    Also those in a session of their own, which `kill_descendants` would miss otherwise.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)


def set_parent_death_signal(parent: int, signum: int = signal.SIGKILL) -> None:
    """Make the kernel send `signum` to this process at its parent's end (prctl(2)); Linux only.

    Exit at once if the process id `parent` is dead already. The signal is sent at the end of the
    parent's *thread* that started this process, so parents must start their children from the main
    thread.
    """
    if sys.platform != "linux":
        return

    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signum))
    if os.getppid() != parent:
        os._exit(128 + int(signum))


if __name__ == "__main__":
    print(visible_gpus())


def free_port() -> int:
    """Return a port that the system assigns to no other process for a minute.

    The port above is reserved too: there the first node of a trial reports its end.
    """
    while True:
        port = _reserve_port(0)
        try:
            with socket.socket() as server:
                server.bind(("127.0.0.1", port + 1))

            _reserve_port(port + 1)
        except (OSError, OverflowError):  # in use, or above the last port
            continue

        return port


def _reserve_port(port: int) -> int:
    """Reserve a port for a minute and return its number; 0: any free port.

    The listening side of a connection closes it first. The port is then in TIME_WAIT: the system
    does not choose it, but a server with SO_REUSEADDR, such as torch's, gets it by number.
    """
    with socket.socket() as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        server.bind(("127.0.0.1", port))
        server.listen(1)
        address = server.getsockname()
        with socket.socket() as client:
            client.connect(address)
            accepted, _ = server.accept()
            accepted.close()
            client.recv(1)

        return int(address[1])
