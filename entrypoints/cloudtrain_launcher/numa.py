"""CPUs for each rank of a machine with several GPUs and NUMA nodes: those near its GPU.

Access to another node's memory is slower for CPUs and GPUs; torch estimates 1 to 10 % of a step
(torch/numa/binding.py). The rank itself does the work of `torchrun --numa-binding=node`, which
requires the program numactl and rules out forked ranks. Standard library only.

Tests check the choice, on a file tree like Linux's, and the binding. Not measured on GPUs.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from cloudtrain_launcher.contract import Job
from cloudtrain_launcher.host import gpu_pci_addresses

RANK_CPUS = "CLOUDTRAIN_RANK_CPUS"
"""CPUs of each local rank, such as `0-23;24-47`; unset: all ranks use all CPUs."""
SWITCH = "NUMA_BINDING"
"""Variable that disables the binding."""


def rank_cpus(
    job: Job,
    environ: Mapping[str, str],
    gpus: Callable[[], Sequence[str]] = gpu_pci_addresses,
    sysfs: Path = Path("/sys"),
) -> str:
    """Return the value of `RANK_CPUS` for this machine; empty if its ranks must not be bound.

    Required: one GPU per rank, GPUs at several NUMA nodes, and usable CPUs at each of them.
    """
    if job.gpus < 2 or environ.get(SWITCH, "").lower() in ("no", "off", "0", "false"):
        return ""
    addresses = gpus()
    if len(addresses) != job.processes or not hasattr(os, "sched_getaffinity"):
        return ""
    nodes = [
        _read(sysfs / "bus" / "pci" / "devices" / address / "numa_node") for address in addresses
    ]
    if len(set(nodes)) < 2 or not all(node.isdecimal() for node in nodes):  # 1: unknown
        return ""
    folder = sysfs / "devices" / "system" / "node"
    allowed = os.sched_getaffinity(0)
    cpus = [parse_cpus(_read(folder / f"node{node}" / "cpulist")) & allowed for node in nodes]
    return ";".join(map(_format, cpus)) if all(cpus) else ""


def bind_rank(local_rank: int, environ: Mapping[str, str]) -> None:
    """Bind this process, a rank without threads yet, and its children to its CPUs."""
    bound = bound_cpus(environ)
    if local_rank < len(bound):
        with suppress(OSError):  # an unbound rank is only slower
            os.sched_setaffinity(0, bound[local_rank])


def bound_cpus(environ: Mapping[str, str]) -> list[frozenset[int]]:
    """Return the CPUs of each local rank; empty if ranks are not bound."""
    text = environ.get(RANK_CPUS, "")
    return [parse_cpus(part) for part in text.split(";")] if text else []


def parse_cpus(text: str) -> frozenset[int]:
    """Parse a list in Linux's form: `0-3,8` is 0, 1, 2, 3 and 8."""
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
