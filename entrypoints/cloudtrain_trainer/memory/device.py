"""What a device takes besides tensors, how sure that is, and whether it all fits. Standard library
only.

The figures of GPUs come from NVIDIA's and torch's documentation and public reports. We have not
measured them.
"""

from __future__ import annotations

from typing import NamedTuple

GIB = 1 << 30
UNPROVEN = "the share of libraries is not measured on a GPU"


class Exceeded(BaseException):
    """More tensors are alive than there is memory for. It passes through `except Exception` of a
    user's model.
    """


class Range(NamedTuple):
    """At least, most likely and at most so many bytes."""

    low: int
    expected: int
    high: int


class Device(NamedTuple):
    """Where a rank computes."""

    memory: int
    """Bytes that there are for it; 0: not known."""
    gpu: str = ""
    """The model, such as A100; empty for a CPU."""


CONTEXT = 0.3, 0.5, 0.8
"""GiB that CUDA takes for its context and kernels, by nvidia-smi of a process with one small
tensor.
"""
MESSAGES = 0.1, 0.3, 1.0
"""GiB of NCCL's buffers, where there are several ranks."""
WORKSPACES = 0.01, 0.05, 0.3
"""GiB that cuBLAS (8 MiB, on Hopper 32 MiB per stream) and cuDNN take to compute."""
TENSORS = 0.95, 1.03, 1.15
"""Of the tensors' own bytes: other kernels than a CPU's, and holes between blocks, which segments
of 2 MiB leave.
"""
PROCESS = 0.3, 0.6, 1.0
"""GiB of a process on a CPU with torch and its libraries."""
CPU_TENSORS = 0.95, 1.0, 1.15
"""The same on a CPU: the bounds that tests/bench/bench_memory.py holds the estimate to."""
WITHOUT_BF16 = ("T4", "V100", "P100", "P40", "K80", "M60")
"""GPUs before compute capability 8.0, on which `--amp auto` is float32."""
USABLE = {"T4": 0.91, "A10": 0.92, "A10G": 0.92, "L4": 0.92, "L40S": 0.92}
"""Of the memory in a GPU's name, the share that CUDA reports where error correction takes a part of
it.
"""
USUALLY_USABLE = 0.975


def usable(gpu: str, gib: float) -> int:
    """Bytes that programs have on a GPU of so many GiB: whole ones are those of its name, which has
    more.
    """
    return int(
        gib * GIB * (USABLE.get(gpu, USUALLY_USABLE) if gib == round(gib) else USUALLY_USABLE)
    )


def precision(requested: str, gpu: str) -> str:
    """Return the value of `--amp` that a rank with this GPU uses."""
    if requested == "auto":
        return "bf16" if gpu and not gpu.startswith(WITHOUT_BF16) else "no"
    return requested


def needed(tensors: int, gpu: str, ranks: int) -> Range:
    """What a rank takes on its device, from the most bytes of tensors that it holds."""
    factors = TENSORS if gpu else CPU_TENSORS
    constants = [CONTEXT, WORKSPACES, *([MESSAGES] if ranks > 1 else [])] if gpu else [PROCESS]
    return Range(
        *(
            int(tensors * factor + sum(each[at] for each in constants) * GIB)
            for at, factor in enumerate(factors)
        )
    )


def most_tensors(device: Device, ranks: int) -> int:
    """The most bytes of tensors with which `needed` surely fits; 1 if none do, 0 where the memory
    is not known.
    """
    if not device.memory:
        return 0
    empty = needed(0, device.gpu, ranks).high
    step = (TENSORS if device.gpu else CPU_TENSORS)[2]
    return max(1, int((device.memory - empty) / step) + 1)


def verdict(range_: Range, memory: int) -> str:
    """`fits`, `may not fit` or `does not fit`; empty where the memory is not known."""
    if not memory:
        return ""
    if range_.high <= memory:
        return "fits"
    return "does not fit" if range_.low > memory else "may not fit"
