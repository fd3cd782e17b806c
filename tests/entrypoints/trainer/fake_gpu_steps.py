"""Program that trains one step of each strategy on GPUs that do not exist.

Its tensors are fake (FakeTensorMode): each operation is dispatched with shapes, dtypes and devices,
but not computed. It raises if an operation mixes devices or dtypes as no GPU can. `fake_gpu.cpp` is
loaded before torch; this module replaces the parts of `torch.cuda` that need a driver.

Prints a JSON: the problems of each case and of each planted fault.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import replace
from itertools import chain
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch
import torch.cuda
from torch import Tensor, nn
from torch._subclasses import FakeTensorMode

from cloudtrain_trainer import strategies
from cloudtrain_trainer.arguments import parse
from cloudtrain_trainer.own_task import from_options
from cloudtrain_trainer.ranks import Ranks
from cloudtrain_trainer.sigterm import Stop
from cloudtrain_trainer.training import step as step_module
from cloudtrain_trainer.training.run import TrainingRun
from cloudtrain_trainer.training.step import DTYPES, Step
from tests.support.counted_steps import SendingBuckets, fake_group
from tests.support.counts import PRODUCTS, CountingMode, tensors_in

OWN = "--task tests.entrypoints.trainer.own_models"
CASES = {
    "single": (1, f"{OWN}:text --amp bf16 --clip-norm 1"),
    "single, fp16": (1, f"{OWN}:text --amp fp16 --accumulate 2"),
    "single, sgd": (1, f"{OWN}:text --optimizer sgd --ema 0.9 --recompute blocks"),
    "single, images": (1, f"{OWN}:images --amp bf16"),
    "dp": (1, f"{OWN}:text --strategy dp --amp bf16"),
    "ddp": (2, f"{OWN}:text --strategy ddp --amp bf16 --accumulate 2"),
    "ddp, images": (2, f"{OWN}:images --strategy ddp --amp fp16"),
}
"""Ranks and flags."""


def moved_at_once(step: Step, inputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Copy a batch to the device, and wait for it."""
    return inputs.to(step.device), targets.to(step.device)


FAULTS: dict[str, Callable[[], Any]] = {
    "a batch that stays in host memory": lambda: patch.object(
        Step, "to_device", lambda _, *batch: batch
    ),
    "a step without autocast": lambda: patch.object(Step, "precision", lambda _: nullcontext()),
    "autocast of another device": lambda: patch.object(
        Step, "precision", lambda _: torch.autocast("cpu", torch.bfloat16)
    ),
    "a batch that is not pinned": lambda: patch.object(
        Tensor, "pin_memory", lambda batch, *_: batch
    ),
    "a copy that waits": lambda: patch.object(Step, "to_device", moved_at_once),
    "an optimizer that is not fused": lambda: patch.object(step_module, "FUSED_ON", ()),
}
"""Changes of the trainer, each tried with the case "ddp"."""


class Idle:
    """A stream, an event or a context of a GPU that is always done."""

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def __getattr__(self, name: str) -> Callable[..., Any]:
        return lambda *_, **__: self

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        pass


class GpuRules(CountingMode):  # type: ignore[no-untyped-call]
    """Notes operations of a step that are wrong or slow on a GPU."""

    def __init__(self, pinned: list[Tensor], dtype: torch.dtype) -> None:
        super().__init__()
        self.problems: list[str] = []
        self._pinned = pinned
        self._dtype = dtype

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = super().__torch_dispatch__(func, types, args, kwargs)
        name = func._schema.name.partition("::")[2]

        if name in PRODUCTS - {"bmm"}:  # attention, which falls back to float32 without CUDA
            dtypes = {x.dtype for x in tensors_in(args) if x.is_floating_point()} - {self._dtype}
            self.problems += [f"{name} computes in {dtype}" for dtype in dtypes]

        if name == "_to_copy" and isinstance(result, Tensor):
            self._check_copy(args[0], result, (kwargs or {}).get("non_blocking", False))
        elif name == "copy_" and isinstance(result, Tensor):
            self._check_copy(args[1], args[0], len(args) > 2 and args[2])

        return result

    def _check_copy(self, source: Tensor, target: Tensor, non_blocking: bool) -> None:
        if source.device.type == target.device.type:
            return

        if not non_blocking:
            self.problems.append(f"a copy to {target.device} waits")
        elif source.is_cpu and not any(source is tensor for tensor in self._pinned):
            self.problems.append("a copy reads memory that is not pinned")


def problems_of(size: int, flags: str) -> list[str]:
    """Return the problems of a step of the last rank of a group."""
    rank = size - 1
    with fake_group(size, rank), _gpus(1 if "--strategy dp " in flags else 4, rank):
        options = parse(["--batch-size", "8", "--workers", "0", *flags.split()])
        task = replace(from_options(options), weight=len)
        fake = FakeTensorMode(allow_non_fake_inputs=True)
        with fake:
            run = TrainingRun(task, Ranks(), options, Stop())

        loader = run.batches.load(epoch=0, skip=0)
        real = [next(loader) for _ in range(run.step.accumulation_steps)]
        faked = [(fake.from_tensor(inputs), fake.from_tensor(targets)) for inputs, targets in real]
        pairs = zip(chain(*real), chain(*faked), strict=True)
        pinned: list[Tensor] = [fake_one for real_one, fake_one in pairs if real_one.is_pinned()]
        run.step.wrapped.train()
        with fake, GpuRules(pinned, DTYPES.get(run.step.amp, torch.float32)) as rules:
            run.step.train_step(iter(faked), 0, 10)

    if not any(name.startswith("_fused_") for name in rules.counts.by_name):
        rules.problems.append("the optimizer is not fused")

    return sorted({*rules.problems, *rules.counts.waits})


@contextmanager
def _gpus(count: int, current: int) -> Iterator[None]:
    """Give torch.cuda what it asks a driver for, and torch what it does to tensors without data."""
    cuda: dict[str, Any] = {
        "_lazy_init": lambda: None,
        "is_available": lambda: True,
        "is_bf16_supported": lambda *_, **__: True,
        "device_count": lambda: count,
        "current_device": lambda: current,
        "set_device": lambda _: None,
        "get_device_capability": lambda *_: (9, 0),
        "get_device_properties": lambda *_: SimpleNamespace(
            multi_processor_count=1, total_memory=1
        ),
        "get_rng_state": lambda *_: None,
        "set_rng_state": lambda *_: None,
        "current_stream": Idle,
        "device": Idle,
        "stream": Idle,
        "Event": Idle,
        "Stream": Idle,
    }
    with ExitStack() as stack:
        for change in (
            patch.multiple(torch.cuda, **cuda),
            patch.object(FakeTensorMode, "avoid_device_init", True),
            patch.object(nn.Module, "to", _moved),
            patch.object(
                nn.DataParallel, "scatter", lambda _, inputs, named, __: ((inputs,), (named,))
            ),
            patch.object(strategies, "DistributedDataParallel", _Buckets),
        ):
            stack.enter_context(change)
        yield


class _Buckets(SendingBuckets):
    """DDP that compares no weights with other ranks."""

    def __init__(self, *args: Any, **named: Any) -> None:
        super().__init__(*args, init_sync=False, **named)


def _moved(module: nn.Module, device: Any = None, memory_format: Any = None) -> nn.Module:
    """Do what `Module.to` does, which changes tensors in place; fake ones stay on their device."""
    moved: dict[int, Any] = {}

    def move(tensor: Tensor) -> Any:
        if device is None or tensor.device == torch.device(device):
            return tensor
        if id(tensor) not in moved:
            on_device = tensor.detach().to(device)
            is_parameter = isinstance(tensor, nn.Parameter)
            moved[id(tensor)] = (
                nn.Parameter(on_device, tensor.requires_grad) if is_parameter else on_device
            )
        return moved[id(tensor)]

    for part in module.modules():
        for registry in (part._parameters, part._buffers):
            for name, tensor in registry.items():
                if tensor is not None:
                    registry[name] = move(tensor)

    return module


def outcome(case: str, change: Any = None) -> list[str]:
    """Return the problems of a case; an error is one. `change`: a context of the step."""
    try:
        with change or nullcontext():
            return problems_of(*CASES[case])
    except Exception as error:  # noqa: BLE001  (any error is a problem)
        return [f"{type(error).__name__}: {str(error).splitlines()[0][:200]}"]


def main() -> None:
    """Print the problems of all cases and faults."""
    torch.library.impl("aten::_fused_sgd_", "Meta", lambda *_, **__: None)  # torch 2.13 lacks it
    outcomes = {name: outcome(name) for name in CASES}
    outcomes |= {name: outcome("ddp", fault()) for name, fault in FAULTS.items()}
    print(json.dumps(outcomes))
