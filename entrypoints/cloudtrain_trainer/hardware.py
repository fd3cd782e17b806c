"""The device of a rank and its network: precision, FLOP/s, memory, torch.compile, bandwidth.

The bandwidth between nodes is measured before the first step of a run on several nodes: a network
that is many times slower than the machine's is otherwise only seen on the bill, since NCCL falls
back to TCP without an error. Source of the bus bandwidth: NVIDIA/nccl-tests, doc/PERFORMANCE.md.
"""

from __future__ import annotations

import os
import resource
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from cloudtrain_job import emit_event
from cloudtrain_launcher.contract import JOB_FILE, read_job
from cloudtrain_launcher.devices import efa_library_dirs, has_efa
from cloudtrain_trainer.ranks import Ranks
from cloudtrain_trainer.rules import Refused
from cloudtrain_wire.events import Warned
from cloudtrain_wire.gpus import gpu_named

COMPILE_BACKEND: str | Callable[..., Any] = "inductor"
"""torch's default backend, which needs a compiler."""

MESSAGE_SIZES = (8 << 20, 64 << 20, 256 << 20)
"""Bytes of the messages; the fastest counts."""
REPEATS = 4
MAX_NETWORK_SECONDS = 5.0
FAR_OFF = 0.4
"""Share of the machine's bandwidth below which something is wrong.

Well configured machines reach 0.7 to 0.95 of it.
"""


def resolve_precision(requested: str, device: torch.device) -> str:
    """Return the value of `--amp` with auto resolved.

    That is bf16 on GPUs that compute in it (compute capability 8.0), else no.
    """
    if requested != "auto":
        return requested

    has_bf16 = device.type == "cuda" and torch.cuda.get_device_capability(device) >= (8, 0)
    return "bf16" if has_bf16 else "no"


def peak_flops(name: str, precision: str) -> float:
    """Return the peak dense FLOP per second of a GPU by name; 0 if unknown.

    `precision`: no, bf16 or fp16.
    """
    gpu = gpu_named(name)
    if gpu is None:
        return 0.0
    if precision == "no":
        return gpu.single_tflops * 1e12

    return gpu.half_tflops * 1e12


def device_name(device: torch.device) -> str:
    """Return the GPU's name as CUDA reports it, `NVIDIA H100 80GB HBM3`; else `cpu`."""
    if device.type != "cuda":
        return "cpu"

    return torch.cuda.get_device_name(device)


def peak_memory(devices: Sequence[torch.device]) -> int:
    """Return peak memory in bytes: of tensors on the fullest GPU, or of the process.

    On GPUs it counts since the last call, on a CPU since the start of the process.
    """
    if devices[0].type == "cuda":
        most = max(torch.cuda.max_memory_allocated(device) for device in devices)
        for device in devices:
            torch.cuda.reset_peak_memory_stats(device)
        return most

    kibi = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * kibi


def resolve_compile(
    requested: str, device: torch.device, possible: bool, log: Callable[[str], None]
) -> bool:
    """Return whether to compile.

    `requested`: the value of `--compile`. `possible`: whether strategy and task allow for it. auto
    compiles on GPUs, and logs an obstacle. Code that cannot be compiled then runs uncompiled. Raise
    `Refused` if `yes` cannot work here.
    """
    if requested == "yes":
        if missing := _missing_compiler(device):
            raise Refused(f"--compile yes: {missing}")
        return True

    if requested == "no" or device.type != "cuda":
        return False

    obstacle = "" if possible else "the task or the strategy with its options cannot be compiled"

    if torch.cuda.get_device_capability(device) < (7, 0):
        obstacle = "torch generates code for GPUs from V100"
    elif find_spec("triton") is None:
        obstacle = "triton is not installed"

    obstacle = obstacle or _missing_compiler(device)
    if obstacle:
        log(f"torch.compile is off: {obstacle}")
        return False

    torch._dynamo.config.suppress_errors = True

    return True


def _missing_compiler(device: torch.device) -> str:
    """Return a hint if no compiler is installed: for C++ on CPUs, for C on GPUs."""
    if COMPILE_BACKEND != "inductor":
        return ""

    names = ("cc", "gcc", "clang") if device.type == "cuda" else ("g++", "clang++", "c++")
    if any(shutil.which(name) for name in names):
        return ""

    return f"no compiler is installed ({', '.join(names)}): add one to the image (apt: gcc and g++)"


def compile_whole(module: nn.Module) -> None:
    """Compile a module as one graph, in place: the names in its state dict stay.

    The module must not be of a class of torch: torch skips those, such as an
    `nn.Sequential` of a model's layers.
    """
    module.compile(backend=COMPILE_BACKEND)


def run_eagerly() -> AbstractContextManager[None]:
    """Run compiled modules uncompiled inside this context."""
    stance: AbstractContextManager[None] = torch.compiler.set_stance("force_eager")
    return stance


def check_network(ranks: Ranks) -> None:
    """Measure and report the bandwidth between GPUs of several nodes. Called by all ranks."""
    if ranks.device.type == "cuda" and ranks.size > ranks.local_size:
        report_network(ranks, bus_bandwidth(ranks), expected_bandwidth(ranks))


def bus_bandwidth(ranks: Ranks) -> float:
    """Return the bandwidth of an all-reduce in bytes per second, as each link sees it.

    It takes at most about `MAX_NETWORK_SECONDS`, besides the time for the first connection.
    """
    links = 2 * (ranks.size - 1) / ranks.size
    best = 0.0
    seconds_per_byte = 0.0

    for size in MESSAGE_SIZES:
        if seconds_per_byte * size * (REPEATS + 1) > MAX_NETWORK_SECONDS / len(MESSAGE_SIZES):
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
    if path:
        gbps = read_job(path).network_gbps
    else:
        gbps = 0

    gpus = max(1, torch.cuda.device_count())

    return gbps * 1e9 / 8 * min(1, ranks.local_size / gpus)


def report_network(ranks: Ranks, measured: float, expected: float) -> None:
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
