"""The peak speed of GPUs, the denominator of MFU, and the memory that a step needed."""

from __future__ import annotations

import resource
import sys

import torch

PEAKS = {
    "B200": (75.0, 2250.0),
    "H200": (67.0, 989.5),
    "H100 PCIe": (51.0, 756.5),
    "H100 NVL": (60.0, 835.5),
    "H100": (67.0, 989.5),
    "A100": (19.5, 312.0),
    "A10G": (35.0, 70.0),
    "L40S": (91.6, 362.0),
    "L4": (30.3, 121.0),
    "V100": (15.7, 125.0),
    "T4": (8.1, 65.0),
}
"""Part of a GPU's name -> TFLOP/s of dense matrices in float32 without TF32, and in bf16 or fp16 on tensor cores.

From NVIDIA's data sheets, where figures with sparsity are twice as high: Blackwell B200, H200, H100 (SXM, PCIe, NVL),
A100, L40S, L4, V100 (SXM2), T4. A10G: AWS' figures for g5 instances. The first part that is found counts.
"""


def peak_flops(name: str, precision: str) -> float:
    """Per second, of a GPU of that name at a value of `--amp`; 0 when it is not known."""
    for part, (single, half) in PEAKS.items():
        if part in name:
            return (single if precision == "no" else half) * 1e12
    return 0.0


def device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"


def peak_memory(device: torch.device) -> int:
    """Bytes: on a GPU the most that tensors took since the last call; on a CPU the most that the process ever had."""
    if device.type == "cuda":
        most = torch.cuda.max_memory_allocated(device)
        torch.cuda.reset_peak_memory_stats(device)
        return most
    kibi = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * kibi
