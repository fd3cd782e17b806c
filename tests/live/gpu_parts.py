"""The parts of `python -m tests.live.gpu`, which one GPU can show.

Each returns figures, or raises `Missed` or `NotHere` with the reason. In a rehearsal the parts run on
the CPU in tiny sizes, with gloo, and do not judge speed and memory, which only a GPU can show.
"""

from __future__ import annotations

import json
import math
import os
import shutil
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._dynamo.utils import counters
from torch.utils.data import TensorDataset

from cloudtrain_trainer import hardware, state
from cloudtrain_trainer.arguments import parse
from cloudtrain_trainer.options import Options
from cloudtrain_trainer.own_task import complete, from_options
from cloudtrain_trainer.ranks import Ranks
from cloudtrain_trainer.reporting.metrics import LossMean
from cloudtrain_trainer.tasks import Task
from cloudtrain_trainer.training import memory
from cloudtrain_trainer.training.loop import Loop
from tests.bench.bench_trainer import hush
from tests.live.gpu_loops import advance, compared, training, wait

SHARE = 0.8
"""Part of the GPU's memory that is full when a checkpoint is saved."""
BATCH = 16
"""Sequences per step when the step rate is measured."""
SMALL_BYTES = 40e9
"""Below this memory, a GPU measures the step rate with `SMALL_BATCH` sequences, as it is slow, too."""
SMALL_BATCH = 4
BYTES_PER_PARAMETER = 16
"""Weight, gradient and two moments in float32."""


class Missed(Exception):
    """A part ran, and showed something else than it claims."""


class NotHere(Exception):
    """A part cannot run on this machine. The message says why."""


@dataclass(frozen=True)
class Setting:
    """Arguments of all parts."""

    folder: Path
    """Common to all parts of one run."""
    rehearse: bool = False

    def judge(self, is_right: bool, message: str) -> None:
        """Raise `Missed`, except in a rehearsal."""
        if not (is_right or self.rehearse):
            raise Missed(message)


def the_gpu_is_known(setting: Setting) -> dict[str, Any]:
    """a GPU is visible, and its peak rate is in the table for MFU"""
    if setting.rehearse:
        return {"device": "cpu"}
    if not torch.cuda.is_available():
        raise NotHere("no GPU is visible; --rehearse runs all parts on the CPU")

    name = torch.cuda.get_device_name()
    if not hardware.peak_flops(name, "bf16"):
        raise Missed(f"cloudtrain_wire/gpus.py lacks {name}")
    return {
        "device": name,
        "capability": torch.cuda.get_device_capability(),
        "bytes": torch.cuda.mem_get_info()[1],
        "cuda": torch.version.cuda,
    }


def a_process_group_starts(setting: Setting) -> dict[str, Any]:
    """a process group starts (NCCL on a GPU) and sums a tensor"""
    began = time.perf_counter()
    ranks = _ranks()
    backend = dist.get_backend()
    setting.judge(backend == "nccl", f"the backend is {backend}")

    numbers = torch.arange(1 << 20, device=ranks.device, dtype=torch.float32)
    reduced = numbers.clone()
    dist.all_reduce(reduced)
    if not torch.equal(reduced, numbers * ranks.size):
        raise Missed("the sum over all ranks is wrong")

    version = torch.cuda.nccl.version() if backend == "nccl" else None  # type: ignore[no-untyped-call]
    return {"backend": backend, "version": version, "seconds": time.perf_counter() - began}


def losses_agree_in_each_precision(setting: Setting) -> dict[str, Any]:
    """bf16 and fp16 reach the loss of float32 within 5 %"""
    steps = 2 if setting.rehearse else 30
    figures = {}
    for amp in ("no", "bf16", "fp16"):
        loop = _loop(setting, "--amp", amp, "--lr-schedule", "constant", "--warm-up", "0")
        advance(loop, steps)
        total, weight = loop.step.loss.state()
        figures[amp] = loss = total / weight
        if not math.isfinite(loss) or abs(loss / figures["no"] - 1) > 0.05:
            raise Missed(f"the loss after {steps} steps is {figures}")
        if loop.step.scaler is not None:
            figures["fp16_scale"] = loop.step.scaler.get_scale()
        del loop

    return {"steps": steps, "loss": figures}


def the_memory_probe_covers_a_step(setting: Setting) -> dict[str, Any]:
    """the trial of --probe-memory allocates at least the peak of later steps"""
    loop = _loop(setting, "--amp", "bf16")
    devices = loop.devices
    hardware.peak_memory(devices)
    if not memory.fits(loop):
        raise Missed("the trial ran out of memory")

    probe = hardware.peak_memory(devices)
    advance(loop, 3)
    peak = hardware.peak_memory(devices)
    setting.judge(probe >= peak, f"the trial allocated {probe} bytes, the steps {peak}")
    return {"probe_bytes": probe, "step_bytes": peak, "ratio": probe / peak}


def compile_is_on(setting: Setting) -> dict[str, Any]:
    """--compile auto makes graphs without breaks, and the GPU runs their kernels"""
    if setting.rehearse:
        hardware.COMPILE_BACKEND = (
            "eager"  # counts graphs alike, in a third of the time  # which needs no compiler
        )
    counters.clear()
    loop = _loop(setting, "--amp", "bf16", "--compile", "yes" if setting.rehearse else "auto")
    if not loop.step.compiles:
        raise Missed("the trainer decided against torch.compile; its log says why")

    began = time.perf_counter()
    advance(loop, 2)
    figures: dict[str, Any] = {
        "backend": hardware.COMPILE_BACKEND,
        "first_steps_seconds": time.perf_counter() - began,
        "graphs": counters["stats"]["unique_graphs"],
        "breaks": sum(counters["graph_break"].values()),
        "frames_failed": counters["frames"]["total"] - counters["frames"]["ok"],
        "kernels": _triton_kernels(loop),
    }
    if not figures["graphs"] or figures["breaks"] or figures["frames_failed"]:
        raise Missed(f"torch compiled only a part: {figures}")
    setting.judge(figures["kernels"] > 0, "no kernel of Triton ran in a step")
    return figures


def _triton_kernels(loop: Any) -> int:
    """Return how many launches of one step are kernels that the compiler made."""
    with torch.profiler.profile() as profile:
        advance(loop, 1)
    return sum(event.name.startswith("triton_") for event in profile.events())


def steps_are_as_fast_as_by_hand(setting: Setting) -> dict[str, Any]:
    """the trainer's steps have at least 0.98 of the rate of a hand-written loop"""
    batch = BATCH
    if not setting.rehearse and torch.cuda.mem_get_info()[1] < SMALL_BYTES:
        batch = SMALL_BATCH
    options = _options(setting, batch, "--amp", "bf16")
    steps, rounds, warm = (1, 1, 1) if setting.rehearse else (15, 5, 5)
    figures = compared(_ranks(), options, steps=steps, rounds=rounds, warm=warm)
    ratio = figures["ours"]["ratio"][1]
    setting.judge(ratio >= 0.98, f"{ratio:.3f} of the hand-written loop: {figures}")
    return figures


def a_checkpoint_fits_beside_a_full_gpu(setting: Setting) -> dict[str, Any]:
    """with 80 % of the memory in use, saving a checkpoint copies no state on the GPU"""
    loop, ballast_bytes = _large(setting)
    advance(loop, 1)
    ballast = torch.empty(ballast_bytes, dtype=torch.uint8, device=loop.device)
    advance(loop, 1)

    on_gpu = loop.device.type == "cuda"
    step_bytes = torch.cuda.max_memory_allocated() if on_gpu else None
    before = torch.cuda.memory_allocated() if on_gpu else 0
    if on_gpu:
        torch.cuda.reset_peak_memory_stats()

    began = time.perf_counter()
    loop.checkpointer.save()
    stall = time.perf_counter() - began
    loop.checkpointer.save(last=True)  # waits for it
    seconds = time.perf_counter() - began
    extra = torch.cuda.max_memory_allocated() - before if on_gpu else None
    weights = state.fingerprint(dict(loop.step.model.named_parameters()))
    expected = {"step": loop.position.step, "weights": weights, "loss": _next_loss(loop)}
    (setting.folder / "expected.json").write_text(json.dumps(expected))
    written = sum(f.stat().st_size for f in _checkpoints(setting).rglob("*") if f.is_file())
    setting.judge((extra or 0) < written / 20, f"saving allocated {extra} bytes")
    return {
        "ballast_bytes": ballast.numel(),
        "step_bytes": step_bytes,
        "extra_bytes": extra,
        "written_bytes": written,
        "stall_seconds": stall,
        "seconds": seconds,
    }


def a_resume_goes_on_exactly(setting: Setting) -> dict[str, Any]:
    """a new process resumes from it beside a full GPU: same weights, same next loss"""
    file = setting.folder / "expected.json"
    if not file.exists():
        raise NotHere("the part before saved no checkpoint")

    expected = json.loads(file.read_text())
    loop, ballast_bytes = _large(setting)
    ballast = torch.empty(ballast_bytes, dtype=torch.uint8, device=loop.device)
    began = time.perf_counter()
    loop.resume()
    wait(loop.ranks)
    seconds = time.perf_counter() - began
    weights = state.fingerprint(dict(loop.step.model.named_parameters()))
    if (loop.position.step, weights) != (expected["step"], expected["weights"]):
        raise Missed(f"step {loop.position.step} has weights {weights}, not {expected}")

    difference = abs(_next_loss(loop) / expected["loss"] - 1)
    if difference > 1e-5:
        raise Missed(f"the next loss differs by {difference:.2g}")
    return {"seconds": seconds, "difference": difference, "ballast_bytes": ballast.numel()}


def the_image_trains(setting: Setting) -> dict[str, Any]:
    """a container of our image has the GPU and trains on it"""
    docker = shutil.which(os.environ.get("DOCKER", "docker"))
    if docker is None:
        raise NotHere("docker is not installed")

    image = "cloudtrain:cpu" if setting.rehearse else "cloudtrain:cuda"
    runtimes = _output([docker, "info", "--format", "{{json .Runtimes}}"], "no engine answers")
    if not setting.rehearse and "nvidia" not in runtimes:
        raise NotHere("the engine gives containers no GPUs: install NVIDIA's Container Toolkit")
    _output([docker, "image", "inspect", image], f"{image} is not here: make image")

    device = "cpu" if setting.rehearse else "cuda"
    gpus = [] if setting.rehearse else ["--gpus", "all", "--shm-size", "1g"]
    began = time.perf_counter()
    for program in (
        ["python3", "-c", f"import torch; torch.zeros(1, device={device!r})"],
        ["train", "--task", "digits", "--epochs", "1", "--strategy", "ddp"],
    ):
        argv = [docker, "run", "--rm", *gpus, image, *program]
        process = subprocess.run(argv, capture_output=True, text=True, check=False)
        if process.returncode:
            raise Missed(
                f"exit code {process.returncode}: {(process.stdout + process.stderr)[-500:]}"
            )

    return {"image": image, "seconds": time.perf_counter() - began}


PARTS: dict[Callable[[Setting], dict[str, Any]], float] = {
    the_gpu_is_known: 30,
    a_process_group_starts: 60,
    losses_agree_in_each_precision: 90,
    the_memory_probe_covers_a_step: 60,
    compile_is_on: 150,
    steps_are_as_fast_as_by_hand: 200,
    a_checkpoint_fits_beside_a_full_gpu: 120,
    a_resume_goes_on_exactly: 90,
    the_image_trains: 120,
}
"""In this order, with the most seconds of each; the first line of each is its claim."""


def _ranks() -> Ranks:
    hush()
    ranks = Ranks()
    ranks.init_process_group()
    return ranks


def _options(setting: Setting, batch: int, *flags: str) -> Options:
    """Return the options of a training of GPT-2; in rehearsals of a tiny one, a sample a step."""
    task = "task" if setting.rehearse else "gpt2"
    argv = ["--task", f"tests.support.decoder:{task}", "--strategy", "single", "--epochs", "100000"]
    argv += ["--batch-size", "1" if setting.rehearse else str(batch), "--probe-memory", "no"]
    return parse([*argv, "--compile", "no", *flags])


def _loop(setting: Setting, *flags: str) -> Loop:
    """Return a training of GPT-2 before its first step."""
    hush()
    options = _options(setting, SMALL_BATCH, *flags)
    return training(Ranks(), from_options(options), options)


class Products(nn.Module):
    """Matrices that inputs are multiplied by, one after the other."""

    def __init__(self, count: int, width: int) -> None:
        super().__init__()
        self.matrices = nn.ParameterList(torch.eye(width) for _ in range(count))

    def forward(self, values: Tensor) -> Tensor:
        for matrix in self.matrices:
            values = values @ matrix
        return values


def _large(setting: Setting) -> tuple[Any, int]:
    """Return a training whose step, with this many bytes beside, fills `SHARE` of the memory."""
    total = 16 << 20 if setting.rehearse else torch.cuda.mem_get_info()[1]
    width = 128 if setting.rehearse else 4096
    parameters = min(SHARE * total / BYTES_PER_PARAMETER, 5e8)
    count = max(1, int(parameters / width**2))
    used = BYTES_PER_PARAMETER * count * width**2
    free = shutil.disk_usage(setting.folder).free
    if free < used:
        raise NotHere(f"{setting.folder} has {free} bytes free, a checkpoint needs up to {used}")

    hush()
    inputs = torch.randn(64, width, generator=torch.Generator().manual_seed(0))
    task = complete(
        Task(
            model=lambda: Products(count, width),
            train=TensorDataset(inputs, torch.zeros(64)),
            loss=lambda outputs, _: outputs.square().mean(),
        ),
        0,
        "products",
    )
    flags = "--strategy single --batch-size 8 --epochs 1000 --compile no --amp no"
    options = parse(flags.split())
    loop = training(Ranks(), task, options, _checkpoints(setting))
    return loop, max(0, int(SHARE * total) - used)


def _checkpoints(setting: Setting) -> Path:
    return setting.folder / "checkpoints"


def _next_loss(loop: Any) -> float:
    loop.step.loss = LossMean()
    advance(loop, 1)
    total, weight = loop.step.loss.state()
    return float(total / weight)


def _output(argv: list[str], problem: str) -> str:
    """Return what a command prints. Raise `NotHere` with this problem if it fails."""
    process = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=30)
    if process.returncode:
        raise NotHere(f"{problem} ({process.stderr.strip()[:200]})")
    return process.stdout
