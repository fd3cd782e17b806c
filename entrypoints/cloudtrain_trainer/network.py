"""Bandwidth between the nodes, measured before the first step of a run on several nodes.

A network that is many times slower than the machine's is otherwise only seen on the bill: NCCL
falls back to TCP without an error. Source of the bus bandwidth: NVIDIA/nccl-tests,
doc/PERFORMANCE.md.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

import torch
import torch.distributed as dist

from cloudtrain_job import emit_event
from cloudtrain_launcher.contract import JOB_FILE, read_job
from cloudtrain_launcher.events import Warned
from cloudtrain_launcher.host import efa_library_dirs, has_efa
from cloudtrain_trainer.ranks import Ranks

SIZES = (8 << 20, 64 << 20, 256 << 20)
"""Bytes of the messages; the fastest counts."""
REPEATS = 4
MAX_SECONDS = 5.0
FAR_OFF = 0.4
"""Share of the machine's bandwidth below which something is wrong.

Well configured machines reach 0.7 to 0.95 of it.
"""


def check(ranks: Ranks) -> None:
    """Measure and report the bandwidth between GPUs of several nodes. Called by all ranks."""
    if ranks.device.type == "cuda" and ranks.size > ranks.local_size:
        report(ranks, bus_bandwidth(ranks), expected_bandwidth(ranks))


def bus_bandwidth(ranks: Ranks) -> float:
    """Return the bandwidth of an all-reduce in bytes per second, as each link sees it.

    It takes at most about `MAX_SECONDS`, besides the time for the first connection.
    """
    links = 2 * (ranks.size - 1) / ranks.size
    best = 0.0
    seconds_per_byte = 0.0
    for size in SIZES:
        if seconds_per_byte * size * (REPEATS + 1) > MAX_SECONDS / len(SIZES):
            break
        message = torch.zeros(size // 4, device=ranks.device)
        _all_reduce(message, 1)
        began = time.perf_counter()
        _all_reduce(message, REPEATS)
        microseconds = int((time.perf_counter() - began) / REPEATS * 1e6)
        slowest = ranks.all_reduce_max(microseconds)()[0]  # all ranks decide by the same time
        seconds_per_byte = max(slowest, 1) / 1e6 / size
        best = max(best, links / seconds_per_byte)
    return best


def _all_reduce(message: torch.Tensor, count: int) -> None:
    for _ in range(count):
        dist.all_reduce(message)
    if message.device.type == "cuda":
        torch.cuda.synchronize(message.device)


def expected_bandwidth(ranks: Ranks) -> float:
    """Return the machine's bandwidth in bytes per second for this many ranks; 0: unknown."""
    path = os.environ.get(JOB_FILE)
    gbps = read_job(path).network_gbps if path else 0
    gpus = max(1, torch.cuda.device_count())
    return gbps * 1e9 / 8 * min(1, ranks.local_size / gpus)


def report(ranks: Ranks, measured: float, expected: float) -> None:
    """Log the bandwidth; warn if it is far below the expected one (0: unknown)."""
    text = f"network: all-reduce over {ranks.size} ranks at {measured / 1e9:.3g}"
    if not expected:
        ranks.log(f"{text} GB/s")
        return
    text += f" of {expected / 1e9:.3g} GB/s expected on this machine"
    if measured >= FAR_OFF * expected:
        ranks.log(text)
        return
    text += f": {_likely_reason()}"
    ranks.log(f"warning: {text}")
    if ranks.rank == 0:
        emit_event(Warned(message=text))


def _likely_reason() -> str:
    if not has_efa():
        return "the container has no /dev/infiniband/uverbs*, so NCCL uses TCP"
    if os.environ.get("FI_PROVIDER") == "efa" and not efa_library_dirs():
        return (
            "the image has no EFA plug-in for NCCL, which uses TCP: see docs/guides/several-nodes"
        )
    topology = os.environ.get("NCCL_TOPO_FILE")
    if topology and not Path(topology).is_file():
        return f"NCCL_TOPO_FILE names {topology}, which the image does not have"
    return "NCCL_DEBUG=INFO in env shows the network that NCCL chose, and why"
