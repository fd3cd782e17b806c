"""Memory of a device besides tensors, and whether a need fits. Standard library only.

The figures of GPUs come from NVIDIA's and torch's documentation and public reports. They have not
been measured.
"""

from __future__ import annotations

from typing import NamedTuple

GIB = 1 << 30


class Range(NamedTuple):
    """Bytes: at least, most likely and at most."""

    low: int
    expected: int
    high: int


CONTEXT = 0.3, 0.5, 0.8
"""GiB of CUDA's context and kernels, by nvidia-smi of a process with one small tensor."""
MESSAGES = 0.1, 0.3, 1.0
"""GiB of NCCL's buffers with several ranks."""
WORKSPACES = 0.01, 0.05, 0.3
"""GiB of work space of cuBLAS (8 MiB, on Hopper 32 MiB per stream) and cuDNN."""
TENSORS = 0.95, 1.03, 1.15
"""Factors of the tensors' bytes: other kernels than a CPU's, and holes between blocks."""
PROCESS = 0.3, 0.6, 1.0
"""GiB of a process on a CPU with torch and its libraries."""
CPU_TENSORS = 0.95, 1.1, 1.6
"""The same on a CPU, whose kernels convert images to other layouts."""
WITHOUT_BF16 = ("T4", "V100", "P100", "P40", "K80", "M60")
"""GPUs before compute capability 8.0, where `--amp auto` is float32."""
USABLE = {"T4": 0.91, "A10": 0.92, "A10G": 0.92, "L4": 0.92, "L40S": 0.92}
"""Share of the memory in a GPU's name that CUDA reports, where error correction takes a part."""
USUALLY_USABLE = 0.975


def usable(gpu: str, gib: float) -> int:
    """Return the bytes that programs have on a GPU. Whole GiB are the figure in the GPU's name."""
    share = USABLE.get(gpu, USUALLY_USABLE) if gib == round(gib) else USUALLY_USABLE
    return int(gib * GIB * share)


def precision(requested: str, gpu: str) -> str:
    """Return the value of `--amp` as a rank would resolve it."""
    if requested == "auto":
        return "bf16" if gpu and not gpu.startswith(WITHOUT_BF16) else "no"
    return requested


def needed(tensors: int, gpu: str, ranks: int) -> Range:
    """Return the memory of a rank that holds at most this many bytes of tensors."""
    factors = TENSORS if gpu else CPU_TENSORS
    constants = [PROCESS]
    if gpu:
        constants = [CONTEXT, WORKSPACES, MESSAGES] if ranks > 1 else [CONTEXT, WORKSPACES]
    ends = []
    for end, factor in enumerate(factors):
        gib = sum(constant[end] for constant in constants)
        ends.append(int(tensors * factor + gib * GIB))
    return Range(*ends)


def verdict(need: Range, memory: int) -> str:
    """Return `fits`, `may not fit` or `does not fit`; empty if the memory is unknown."""
    if not memory:
        return ""
    if need.high <= memory:
        return "fits"
    return "does not fit" if need.low > memory else "may not fit"
