"""One process per device, each with the whole model and a share of the batch: `DistributedDataParallel`.

When: the model fits on one device and you have several, on one node or many. The default for several
processes. Memory: a full copy of parameters, gradients and optimizer state on every rank; gradients live in
the buckets that are sent (`gradient_as_bucket_view`), which saves one more copy. Communication: one all-
reduce of the gradients per step (2 x their size per rank, in a ring), sent in buckets while the backward
pass still runs; none in accumulated parts.

Source: Li et al., "PyTorch Distributed: Experiences on Accelerating Data Parallel Training", VLDB 2020;
torch/nn/parallel/distributed.py.
"""

from __future__ import annotations

from contextlib import AbstractContextManager

import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from ranks import Ranks
from strategies import Strategy


class DistributedData(Strategy):
    def start(self) -> None:
        self.ranks.form()

    def wrap(self, model: nn.Module) -> DistributedDataParallel:
        on_gpu = self.ranks.device.type == "cuda"
        return DistributedDataParallel(
            model, device_ids=[self.ranks.local_rank] if on_gpu else None, gradient_as_bucket_view=True
        )

    def accumulating(self, wrapped: nn.Module) -> AbstractContextManager[None]:
        context: AbstractContextManager[None] = wrapped.no_sync()  # type: ignore[operator]
        return context

    def sync_buffers(self, model: nn.Module) -> None:
        """Rank 0's go to all, as DDP does before the next forward pass anyhow: training is not changed."""
        for buffer in model.buffers():
            dist.broadcast(buffer, src=0)


def build(ranks: Ranks) -> Strategy:
    return DistributedData(ranks)
