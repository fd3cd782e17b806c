"""How a model trains: alone, on copies in one process (dp), or on a copy per process (ddp).

`single`: the model and its batch fit on one device, or you are debugging. Memory: one copy of
everything (parameters, gradients, and two more copies for AdamW). Communication: none.

`ddp`, `DistributedDataParallel`: you have several devices, on one node or many, and the model fits
on each. It is the default for several processes. Memory: a full copy of parameters, gradients and
optimizer state on each rank; the gradients are views of the communication buckets, which saves
another copy. Communication: one all-reduce of the gradients per step (2 x their size per rank, in a
ring), in buckets that are sent during the backward pass; none while gradients are accumulated.

`dp`, `nn.DataParallel` on all GPUs of this machine: hardly ever; where torchrun cannot be used. It
copies the model to every GPU in each forward pass, gathers all outputs on the first GPU, which
therefore runs out of memory first, and drives all GPUs from one Python interpreter. Batch norm
keeps the statistics of the first GPU. Without a GPU the model is called directly.

Sources: Li et al., "PyTorch Distributed: Experiences on Accelerating Data Parallel Training", VLDB
2020; torch/nn/parallel. A model that does not fit on one device needs a separate program:
examples/parallelism.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DataParallel, DistributedDataParallel

from cloudtrain_trainer import hardware
from cloudtrain_trainer.ranks import Ranks
from cloudtrain_trainer.rules import Refused
from cloudtrain_trainer.tasks import Task

Precision = Callable[[], AbstractContextManager[Any]]
"""Makes the context of a forward pass: autocast with `--amp`."""


def devices(strategy: str, device: torch.device) -> list[torch.device]:
    """Return the devices that a rank computes on; the first is its `device`."""
    if strategy == "dp" and device.type == "cuda":
        return [torch.device("cuda", index) for index in range(torch.cuda.device_count())]

    return [device]


def wrap(
    strategy: str,
    model: nn.Module,
    task: Task,
    ranks: Ranks,
    precision: Precision,
    *,
    compiles: bool,
) -> nn.Module:
    """Return a module (inputs, targets) -> mean loss of shape (), to call in training.

    `model`: on the rank's device, with the same weights on all ranks.
    """
    if strategy == "dp":
        return ModelWithLoss(DataParallel(AutocastModule(model, precision)), task)

    module = ModelWithLoss(model, task)
    if compiles:
        hardware.compile_whole(module)
    if strategy == "single":
        return module

    device_ids = [ranks.local_rank] if ranks.device.type == "cuda" else None
    return DistributedDataParallel(module, device_ids=device_ids, gradient_as_bucket_view=True)


def without_peers(wrapped: nn.Module) -> nn.Module:
    """Return the module that a rank can call alone: DDP's wrapper waits for the peers."""
    return wrapped.module if isinstance(wrapped, DistributedDataParallel) else wrapped


def accumulating(wrapped: nn.Module) -> AbstractContextManager[None]:
    """Return the context of all micro-batches of a step except the last: without communication."""
    if isinstance(wrapped, DistributedDataParallel):
        return wrapped.no_sync()

    return nullcontext()


def refuse_unused_parameters(error: RuntimeError, model: nn.Module) -> None:
    """Raise `Refused` with the parameters that the last step did not use, if DDP names them."""
    match = re.search(r"did not receive grad for rank \d+: ([\d ]+)", str(error))
    if match is None:
        return

    names = [name for name, parameter in model.named_parameters() if parameter.requires_grad]
    indices = match[1].split()[:5]
    unused = ", ".join(names[int(index)] for index in indices)
    raise Refused(
        "the loss does not depend on these parameters, so ranks would wait for their gradients:"
        f" {unused}. Freeze them: requires_grad_(False)"
    ) from None


def sync_buffers(model: nn.Module, ranks: Ranks) -> None:
    """Give all ranks rank 0's buffers, such as batch norm's statistics, as DDP does in training."""
    if ranks.size > 1:
        for buffer in model.buffers():
            dist.broadcast(buffer, src=0)


class ModelWithLoss(nn.Module):
    """A model and its loss as one module: one graph to compile, one module to wrap."""

    def __init__(self, model: nn.Module, task: Task) -> None:
        super().__init__()
        self.model = model
        self._call = task.call
        self._loss = task.loss

    def forward(self, inputs: Any, targets: Any) -> Tensor:
        """Return the mean loss over the samples, shape (). Arguments: (batch, ...)."""
        return self._loss(self._call(self.model, inputs), targets)


class AutocastModule(nn.Module):
    """A module that runs under autocast with `--amp` in whatever thread calls it.

    Autocast's precision is set per thread, and a new thread has fp16 on GPUs (`autocast_dtype`,
    thread_local in torch's aten/src/ATen/autocast_mode.cpp; torch/nn/parallel/parallel_apply.py
    only passes on that it is enabled).
    """

    def __init__(self, part: nn.Module, precision: Precision) -> None:
        super().__init__()
        self.part = part
        self._precision = precision

    def forward(self, *inputs: Any, **named: Any) -> Any:
        with self._precision():
            return self.part(*inputs, **named)
