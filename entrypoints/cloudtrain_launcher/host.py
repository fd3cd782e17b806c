"""The machine that the launcher runs on: CPU cores, GPUs before torch is imported, EFA adapters,
and processes that end with their parent. Standard library only; run as a program, it prints the
number of GPUs.
"""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import sys
from pathlib import Path


def available_cores() -> int:
    """The number of CPU cores that this process may use, which may be fewer than the machine has."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def visible_gpus() -> int:
    """The number of GPUs that CUDA sees, with `CUDA_VISIBLE_DEVICES` and MIG respected; 0 without a
    driver.
    """
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return 0
    count = ctypes.c_int(0)
    if driver.cuInit(0) != 0 or driver.cuDeviceGetCount(ctypes.byref(count)) != 0:
        return 0
    return count.value


def has_accelerator() -> bool:
    """Whether this process sees an NVIDIA GPU, or the machine has a device of AMD, AWS Neuron,
    Gaudi or a TPU.
    """
    devices = ("kfd", "neuron*", "accel*")
    return visible_gpus() > 0 or any(
        path for pattern in devices for path in Path("/dev").glob(pattern)
    )


def gpu_pci_addresses() -> list[str]:
    """The PCI address of each visible GPU as Linux writes it, such as `0000:3b:00.0`; empty without
    a driver.
    """
    found = []
    for number in range(visible_gpus()):
        text = ctypes.create_string_buffer(32)
        if ctypes.CDLL("libcuda.so.1").cuDeviceGetPCIBusId(text, len(text), number) != 0:
            return []
        domain, _, place = text.value.decode().lower().partition(":")
        found.append(f"{int(domain, 16):04x}:{place}")
    return found


def has_efa() -> bool:
    """Whether the machine has an EFA adapter: libfabric fails or hangs if it must use one that is
    not there.
    """
    return any(Path("/dev/infiniband").glob("uverbs*"))


def efa_library_dirs(root: str = "/opt/amazon") -> tuple[str, ...]:
    """Folders of NCCL's plug-in for EFA and of its libfabric, as AWS's installer creates them; ()
    if there are none.
    """
    found = [
        *Path(root, "ofi-nccl").rglob("libnccl-net*.so"),
        *Path(root, "efa").rglob("libfabric.so*"),
    ]
    return tuple(dict.fromkeys(str(path.parent) for path in sorted(found, reverse=True)))


_PR_SET_PDEATHSIG = 1


def set_parent_death_signal(parent: int, signum: int = signal.SIGKILL) -> None:
    """Have the kernel send `signum` to this process when its parent ends (prctl(2), Linux);
    elsewhere do nothing.

    Exits at once if `parent`, a process id, is gone already. The signal is sent when the parent's
    *thread* that started this process ends, so parents must start their children from their main
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
    """A port of this machine that the system assigns to no other process for the next minute.

    Neither does it assign the port above, where the first node of a trial tells the others when it
    ends.
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
    """Reserve a port for a minute; 0: any that is free. Return its number.

    A connection through it is closed by the listening side first. The port then is in TIME_WAIT, so
    it is not chosen for others, while a server that asks for it by number (with SO_REUSEADDR, as
    torch does) gets it.
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
