"""One process drives all GPUs of this machine: `nn.DataParallel`.

When: hardly ever; on one machine, where torchrun cannot be used. `ddp` is better even there: dp copies the
model to every GPU at each forward pass, gathers all outputs on the first GPU (which so runs out of memory
first), and feeds all of them from one Python interpreter. Memory: one copy per GPU, and all outputs on the
first. Communication: the whole model out and all gradients back, every step. Batch norm keeps the first GPU's
statistics. Without a GPU it calls the model directly. Each replica runs in a thread of its own, and the precision of
autocast is a thread's own: replicas are told theirs again.

Source: torch/nn/parallel/data_parallel.py; "Comparison between DataParallel and DistributedDataParallel" in
PyTorch's DDP tutorial.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from cloudtrain_trainer.hardware import every_gpu
from cloudtrain_trainer.options import Options
from cloudtrain_trainer.ranks import Ranks
from cloudtrain_trainer.strategies import Precise, Strategy

if TYPE_CHECKING:
    from cloudtrain_trainer.step import Step


class DataParallel(Strategy):
    @property
    def devices(self) -> list[torch.device]:
        return every_gpu(self.ranks.device)

    def wrap(self, model: nn.Module, step: Step) -> tuple[nn.Module, nn.Module]:
        model = model.to(self.ranks.device)
        return model, nn.DataParallel(Precise(model, step))

    def learn(self, step: Step, inputs: Tensor, targets: Tensor) -> None:
        """The answers come together on the first GPU, and the loss is that of all of them."""
        with step.precision():
            loss = step.task.loss(step.task.call(step.wrapped, inputs, True), targets)
        step.backward(loss, len(targets))


def build(ranks: Ranks, options: Options) -> Strategy:
    return DataParallel(ranks, options)
