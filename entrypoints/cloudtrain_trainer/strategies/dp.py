"""One process drives all GPUs of this machine: `nn.DataParallel`.

When: hardly ever; on one machine where torchrun cannot be used. `ddp` is better even there: dp
copies the model to every GPU in each forward pass, gathers all outputs on the first GPU, which
therefore runs out of memory first, and drives all GPUs from one Python interpreter. Memory: one
copy of the model per GPU, and all outputs on the first. Communication: the whole model out and all
gradients back, in every step. Batch norm keeps the statistics of the first GPU. Without a GPU the
model is called directly. Each replica runs in its own thread and sets autocast's precision itself,
since it is a setting per thread.

Source: torch/nn/parallel/data_parallel.py; "Comparison between DataParallel and
DistributedDataParallel" in PyTorch's DDP tutorial.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from cloudtrain_trainer.options import Options
from cloudtrain_trainer.ranks import Ranks
from cloudtrain_trainer.strategies import AutocastModule, Step, Strategy
from cloudtrain_trainer.trees import sample_count


class DataParallel(Strategy):
    """`nn.DataParallel` around the model, in one process."""

    replicated: Callable[..., nn.Module] = nn.DataParallel

    @property
    def devices(self) -> list[torch.device]:
        return self.ranks.all_devices()

    def wrap(self, model: nn.Module, step: Step) -> tuple[nn.Module, nn.Module]:
        step.place(model)
        return model, self.replicated(AutocastModule(model, step))

    def forward_backward(self, step: Step, inputs: Any, targets: Any) -> None:
        """Gather the outputs (batch, ...) on the first GPU, and compute the loss."""
        with step.precision():
            loss = step.task.loss(step.task.call(step.wrapped, inputs, True), targets)
        step.backward(loss, sample_count(targets))


def build(ranks: Ranks, options: Options) -> Strategy:
    return DataParallel(ranks, options)
