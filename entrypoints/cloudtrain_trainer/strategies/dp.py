"""One process drives all GPUs of this machine: `nn.DataParallel`.

When: hardly ever; on one machine, where torchrun cannot be used. `ddp` is better even there: dp copies the
model to every GPU at each forward pass, gathers all outputs on the first GPU (which so runs out of memory
first), and feeds all of them from one Python interpreter. Memory: one copy per GPU, and all outputs on the
first. Communication: the whole model out and all gradients back, every step. Batch norm keeps the first GPU's
statistics. Without a GPU it calls the model directly.

Source: torch/nn/parallel/data_parallel.py; "Comparison between DataParallel and DistributedDataParallel" in
PyTorch's DDP tutorial.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import nn

from cloudtrain_trainer.hardware import every_gpu
from cloudtrain_trainer.options import Options
from cloudtrain_trainer.ranks import Ranks
from cloudtrain_trainer.strategies import Strategy

if TYPE_CHECKING:
    from cloudtrain_trainer.step import Step


class DataParallel(Strategy):
    @property
    def devices(self) -> list[torch.device]:
        return every_gpu(self.ranks.device)

    def wrap(self, model: nn.Module, step: Step) -> tuple[nn.Module, nn.Module]:
        model, _ = super().wrap(model, step)
        return model, nn.DataParallel(model)


def build(ranks: Ranks, options: Options) -> Strategy:
    return DataParallel(ranks, options)
