"""What a rank computes on: its precision, its peak speed (the denominator of MFU), its memory, and torch.compile."""

from __future__ import annotations

import resource
import shutil
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import nn

from cloudtrain_trainer.rules import Refused

PEAKS = {
    "B200": (1125.0, 2250.0),
    "H200": (494.5, 989.5),
    "H100 PCIe": (378.0, 756.5),
    "H100 NVL": (417.5, 835.5),
    "H100": (494.5, 989.5),
    "A100": (156.0, 312.0),
    "A10G": (35.0, 70.0),
    "L40S": (183.0, 362.0),
    "L4": (60.0, 121.0),
    "V100": (15.7, 125.0),
    "T4": (8.1, 65.0),
}
"""Part of a GPU's name -> TFLOP/s of dense matrices in float32 (TF32 where the GPU has it), and in bf16 or fp16.

From NVIDIA's data sheets, where figures with sparsity are twice as high: Blackwell B200, H200, H100 (SXM, PCIe, NVL),
A100, L40S, L4, V100 (SXM2), T4. A10G: AWS' figures for g5 instances. The first part that is found counts.
"""


def precision(asked: str, device: torch.device) -> str:
    """What a value of `--amp` means here: auto is bf16 where the GPU computes in it, else no."""
    if asked != "auto":
        return asked
    has_bf16 = device.type == "cuda" and torch.cuda.get_device_capability(device) >= (8, 0)
    return "bf16" if has_bf16 else "no"


def peak_flops(name: str, precision: str) -> float:
    """Per second, of a GPU of that name in "no", "bf16" or "fp16"; 0 when it is not known."""
    for part, (single, half) in PEAKS.items():
        if part in name:
            return (single if precision == "no" else half) * 1e12
    return 0.0


def device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"


def every_gpu(device: torch.device) -> list[torch.device]:
    """All that this process sees, for one that drives them all; on a CPU that."""
    if device.type != "cuda":
        return [device]
    return [torch.device("cuda", index) for index in range(torch.cuda.device_count())]


def peak_memory(devices: Sequence[torch.device]) -> int:
    """Bytes: on GPUs the most that tensors took on any since the last call; on a CPU the most of the process so far."""
    if devices[0].type == "cuda":
        most = max(torch.cuda.max_memory_allocated(device) for device in devices)
        for device in devices:
            torch.cuda.reset_peak_memory_stats(device)
        return most
    kibi = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * kibi


def check_compiler(device: torch.device) -> None:
    """torch.compile writes C++ for CPUs and C for GPUs: without a compiler it would fail at the first step."""
    names = ("cc", "gcc", "clang") if device.type == "cuda" else ("g++", "clang++", "c++")
    if not any(shutil.which(name) for name in names):
        raise Refused(
            f"--compile needs a compiler, and there is none here ({', '.join(names)}): leave it out, or build the "
            'image with one (image.args = ["WITH_COMPILER=1"] in cloudtrain.toml, for `image: auto`)'
        )


COMPILE_BACKEND: str | Callable[..., Any] = "inductor"
"""torch's own, which needs a compiler of the system's."""


def check_compile(device: torch.device) -> None:
    """Raise `Refused` where it cannot work."""
    if COMPILE_BACKEND == "inductor":
        check_compiler(device)


def compile_whole(module: nn.Module) -> None:
    """As one graph, in place: the names in its state stay.

    To be of a class of ours: torch passes over its own, and so would compile nothing of a model that is an
    `nn.Sequential` of torch's layers.
    """
    module.compile(backend=COMPILE_BACKEND)


def compile_each(layers: Sequence[nn.Module]) -> None:
    """Each as a graph of its own, for strategies that gather one after the other: no graph reaches across two.

    Layers of one kind share their code, and torch counts all graphs of one code against a limit, past which they run
    as they were written: there must be room for every layer, and again for parts of a batch that differ in size.
    """
    config = torch._dynamo.config
    config.recompile_limit = max(config.recompile_limit, 2 * len(layers))
    for layer in layers:
        layer.forward = _compiled_in_training(layer)


def _compiled_in_training(layer: nn.Module) -> Callable[..., Any]:
    """Evaluation is not worth graphs of its own: its last batch has another size."""
    plain, fast = layer.forward, torch.compile(layer.forward, backend=COMPILE_BACKEND)

    def forward(*inputs: Any, **named: Any) -> Any:
        return (fast if layer.training else plain)(*inputs, **named)

    return forward


def eager() -> AbstractContextManager[None]:
    """The context of passes as if nothing had been compiled."""
    stance: AbstractContextManager[None] = torch.compiler.set_stance("force_eager")
    return stance
