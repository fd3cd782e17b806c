"""One process: on one device, on copies of the model (dp), or on its stages (model-parallel).

`single`, the plain loop: when the model and its batch fit on one device, or you are debugging.
Memory: one copy of everything (parameters, gradients, and two more copies for AdamW).
Communication: none.

`dp`, `nn.DataParallel` on all GPUs of this machine: hardly ever; where torchrun cannot be used.
`ddp` is better even there: dp copies the model to every GPU in each forward pass, gathers all
outputs on the first GPU, which therefore runs out of memory first, and drives all GPUs from one
Python interpreter. Memory: one copy of the model per GPU, and all outputs on the first.
Communication: the whole model out and all gradients back, in every step. Batch norm keeps the
statistics of the first GPU. Without a GPU the model is called directly.

`model-parallel`: when the model does not fit on one GPU, the machine has several, and simplicity
matters more than speed. One device computes at a time while the others wait, so pipeline or fsdp is
faster on as many GPUs. Memory: parameters, gradients and optimizer state divided by the number of
stages (`--stages`, by default one per GPU). Communication: the activations between stages. Without
a GPU all stages are on the CPU: the results are right, but it does not pay.

Sources: torch/nn/parallel/data_parallel.py; "Comparison between DataParallel and
DistributedDataParallel" in PyTorch's DDP tutorial; "Single-Machine Model Parallel Best Practices"
(a ResNet-50 split in two).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from cloudtrain_trainer import hardware
from cloudtrain_trainer.options import Options
from cloudtrain_trainer.ranks import Ranks
from cloudtrain_trainer.strategies import AutocastModule, Step, Strategy


class DataParallel(Strategy):
    """`nn.DataParallel` around the model, in one process."""

    replicated: Callable[..., nn.Module] = nn.DataParallel

    @property
    def devices(self) -> list[torch.device]:
        return hardware.all_devices(self.ranks.device)

    def wrap(self, model: nn.Module, step: Step) -> tuple[nn.Module, nn.Module]:
        model.to(step.device)
        return model, self.replicated(AutocastModule(model, step))

    def forward_backward(self, step: Step, inputs: Any, targets: Any) -> None:
        """Gather the outputs (batch, ...) on the first GPU, and compute the loss."""
        with step.precision():
            loss = step.task.loss(step.task.call(step.wrapped, inputs, True), targets)
        step.backward(loss)


class ModelParallel(Strategy):
    """One process that calls the stages one after the other."""

    @property
    def devices(self) -> list[torch.device]:
        return self._devices

    def wrap(self, model: nn.Module, step: Step) -> tuple[nn.Module, nn.Module]:
        assert step.task.stages is not None  # noqa: S101  (rules.py has refused the others)
        devices = hardware.all_devices(self.ranks.device)
        count = self.options.stages or min(max(len(devices), 2), step.task.max_stages)
        self._devices = devices[:count]
        stages = step.task.stages(model, count)
        spread = [devices[i % len(devices)] for i in range(count)]
        for stage, device in zip(stages, spread, strict=True):
            stage.to(device)

        return model, Chain(stages, spread)

    def forward_backward(self, step: Step, inputs: Tensor, targets: Tensor) -> None:
        with step.precision():
            outputs = step.wrapped(inputs)
            loss = step.task.loss(outputs, targets.to(self._last(step)))

        step.backward(loss)

    def outputs(self, step: Step, inputs: Tensor) -> Tensor | None:
        with step.precision():
            outputs: Tensor = step.wrapped(inputs)
        return outputs.to(self.ranks.device)

    @staticmethod
    def _last(step: Step) -> torch.device:
        assert isinstance(step.wrapped, Chain)  # noqa: S101  (made above)
        return step.wrapped.devices[-1]


class Chain(nn.Module):
    """Stages that are called one after the other, each on its own device."""

    def __init__(self, stages: Sequence[nn.Module], devices: Sequence[torch.device]) -> None:
        super().__init__()
        self.devices = list(devices)
        self.stages = nn.ModuleList(stages)

    def forward(self, values: Tensor) -> Tensor:
        for stage, device in zip(self.stages, self.devices, strict=True):
            values = stage(values.to(device, non_blocking=True))
        return values


def build(ranks: Ranks, options: Options) -> Strategy:
    kinds = {"single": Strategy, "dp": DataParallel, "model-parallel": ModelParallel}
    return kinds[options.strategy](ranks, options)
