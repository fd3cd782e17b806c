"""The device of a rank: mixed precision, peak FLOP/s, memory, torch.compile."""

from __future__ import annotations

import resource
import shutil
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from importlib.util import find_spec
from typing import Any

import torch
from torch import nn

from cloudtrain_trainer.rules import Refused

PEAK_TFLOPS = {
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
"""GPU name -> dense TFLOP/s in float32 (TF32 if available), and in bf16 or fp16.

The first name that matches counts. From NVIDIA's data sheets, whose figures with sparsity are twice
as high: Blackwell B200, H200, H100 (SXM, PCIe, NVL), A100, L40S, L4, V100 (SXM2), T4. A10G: AWS'
figures for g5 instances.
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
    for part, (single, half) in PEAK_TFLOPS.items():
        if part in name:
            return (single if precision == "no" else half) * 1e12
    return 0.0


def device_name(device: torch.device) -> str:
    """Return the GPU's name as CUDA reports it, `NVIDIA H100 80GB HBM3`; else `cpu`."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"


def all_devices(device: torch.device) -> list[torch.device]:
    """Return all GPUs that this process sees; without a GPU the CPU alone."""
    if device.type != "cuda":
        return [device]
    return [torch.device("cuda", index) for index in range(torch.cuda.device_count())]


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


COMPILE_BACKEND: str | Callable[..., Any] = "inductor"
"""torch's default backend, which needs a compiler."""


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

    The module must not be of a class of torch: torch skips those, and would compile nothing of a
    model that is an `nn.Sequential` of its layers.
    """
    module.compile(backend=COMPILE_BACKEND)


def compile_each(layers: Sequence[nn.Module]) -> None:
    """Compile each layer as a graph, for strategies that gather one layer after the other.

    Layers of one class share their code, and torch limits the number of graphs per code; past the
    limit they run uncompiled. So the limit is raised to two graphs per layer, since the
    micro-batches of a batch may have two sizes.
    """
    config = torch._dynamo.config
    config.recompile_limit = max(config.recompile_limit, 2 * len(layers))
    for layer in layers:
        layer.forward = _compiled_in_training(layer)


def _compiled_in_training(layer: nn.Module) -> Callable[..., Any]:
    """Return the layer's forward: compiled in training, original in evaluation.

    The last batch of an evaluation has another size, and would need another graph.
    """
    original = layer.forward
    compiled = torch.compile(layer.forward, backend=COMPILE_BACKEND)

    def forward(*inputs: Any, **named: Any) -> Any:
        return (compiled if layer.training else original)(*inputs, **named)

    return forward


def run_eagerly() -> AbstractContextManager[None]:
    """Run compiled modules uncompiled inside this context."""
    stance: AbstractContextManager[None] = torch.compiler.set_stance("force_eager")
    return stance
