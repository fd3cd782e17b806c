"""Which CPUs each rank of a machine with several GPUs and NUMA nodes runs on: those beside its GPU.

Memory of the other node is slower to reach for a CPU and for a GPU; torch speaks of 1 to 10 % of a
step (torch/numa/binding.py). What `torchrun --numa-binding=node` does, done by the rank itself:
torchrun's needs the program numactl and starts each rank by it, which rules out ranks that are
forks. Standard library only.

Shown by tests: the choice, from a file tree like Linux's, and that a rank runs where it is told.
Not measured on GPUs.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from cloudtrain_launcher.contract import Job
from cloudtrain_launcher.host import gpu_pci_addresses

RANK_CPUS = "CLOUDTRAIN_RANK_CPUS"
"""The CPUs of each local rank, such as `0-23;24-47`; not set: all ranks run on all CPUs."""
SWITCH = "NUMA_BINDING"
"""The variable by which a user says no."""


def rank_cpus(
    job: Job,
    environ: Mapping[str, str],
    gpus: Callable[[], Sequence[str]] = gpu_pci_addresses,
    sysfs: Path = Path("/sys"),
) -> str:
    """The value of `RANK_CPUS` for this machine; empty if its ranks must not be bound.

    Only where each rank has one GPU, the GPUs are at several NUMA nodes, and all ranks may use CPUs
    of theirs.
    """
    if job.gpus < 2 or environ.get(SWITCH, "").lower() in ("no", "off", "0", "false"):
        return ""
    addresses = gpus()
    if len(addresses) != job.processes or not hasattr(os, "sched_getaffinity"):
        return ""
    nodes = [
        _read(sysfs / "bus" / "pci" / "devices" / address / "numa_node") for address in addresses
    ]
    if len(set(nodes)) < 2 or not all(
        node.isdecimal() for node in nodes
    ):  # -1: the machine does not tell
        return ""
    folder = sysfs / "devices" / "system" / "node"
    allowed = os.sched_getaffinity(0)
    cpus = [parse_cpus(_read(folder / f"node{node}" / "cpulist")) & allowed for node in nodes]
    return ";".join(map(_format, cpus)) if all(cpus) else ""


def bind_rank(local_rank: int, environ: Mapping[str, str]) -> None:
    """Have this process, a rank that has no threads yet, run on its CPUs, and what it starts; or
    leave it free.
    """
    bound = bound_cpus(environ)
    if local_rank < len(bound):
        with suppress(OSError):  # a rank that may not is slower, and no worse
            os.sched_setaffinity(0, bound[local_rank])


def bound_cpus(environ: Mapping[str, str]) -> list[frozenset[int]]:
    """The CPUs of each local rank; empty if ranks are not bound."""
    text = environ.get(RANK_CPUS, "")
    return [parse_cpus(part) for part in text.split(";")] if text else []


def parse_cpus(text: str) -> frozenset[int]:
    """The numbers of a list as Linux writes it: `0-3,8` is 0, 1, 2, 3 and 8."""
    ranges = [part.partition("-") for part in text.split(",") if part.strip()]
    return frozenset(
        cpu for first, _, last in ranges for cpu in range(int(first), int(last or first) + 1)
    )


def _format(cpus: frozenset[int]) -> str:
    parts = []
    for first in sorted(cpu for cpu in cpus if cpu - 1 not in cpus):
        last = first
        while last + 1 in cpus:
            last += 1
        parts.append(str(first) if first == last else f"{first}-{last}")
    return ",".join(parts)


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
