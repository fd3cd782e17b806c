"""The launcher's machine: CPU cores, GPUs, EFA adapters, ports, processes. Standard library only.

Processes are read in /proc: CPU time, memory, wakeups, reads, descendants.
"""

from __future__ import annotations

from pathlib import Path

from cloudtrain_wire.visible_gpus import visible_gpus


def has_accelerator() -> bool:
    """Return whether the machine has a GPU or accelerator: NVIDIA, AMD, Neuron, Gaudi or TPU."""
    if visible_gpus() > 0:
        return True

    devices = ("kfd", "neuron*", "accel*")
    return any(any(Path("/dev").glob(pattern)) for pattern in devices)


def has_efa() -> bool:
    """Return whether the machine has an EFA adapter; without one libfabric fails or hangs."""
    return any(Path("/dev/infiniband").glob("uverbs*"))


def efa_library_dirs(root: str = "/opt/amazon") -> tuple[str, ...]:
    """Return the folders of NCCL's EFA plug-in and its libfabric, from AWS's installer; or ()."""
    files = list(Path(root, "ofi-nccl").rglob("libnccl-net*.so"))
    files += Path(root, "efa").rglob("libfabric.so*")
    folders = [str(file.parent) for file in sorted(files, reverse=True)]
    return tuple(dict.fromkeys(folders))
