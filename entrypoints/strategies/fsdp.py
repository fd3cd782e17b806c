"""Every rank keeps a slice of each parameter, and sees a layer whole only while it computes it: FSDP2.

When: the model, its gradients or the optimizer's state do not fit on one device. Memory: parameters, gradients and
optimizer state divided by the number of ranks, and one layer whole at a time. Communication: per part of a step the
parameters are gathered twice (forward and backward) and the gradients reduced once, 1.5 times what ddp sends;
accumulated parts gather, but do not reduce. With --amp the parameters travel in float32 and are computed with in the
lower precision. Batch norm statistics are each rank's own until an evaluation or a checkpoint, for which all take
rank 0's.

Source: Zhao et al., "PyTorch FSDP: Experiences on Scaling Fully Sharded Data Parallel", VLDB 2023; Rajbhandari et al.,
"ZeRO", SC 2020; torch/distributed/fsdp/_fully_shard.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any

import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard

from arguments import Options
from ranks import Ranks
from strategies import Strategy

if TYPE_CHECKING:
    from step import Step


class FullyShardedData(Strategy):
    communicates = True

    def __init__(self, ranks: Ranks, options: Options) -> None:
        super().__init__(ranks, options)
        self.holders = ranks.size

    def start(self) -> None:
        self.ranks.form(self.options.backend)
        self.mesh = self.make_mesh()

    def make_mesh(self) -> DeviceMesh:
        return init_device_mesh(self.ranks.device.type, (self.ranks.size,), mesh_dim_names=("shard",))

    def wrap(self, model: nn.Module, step: Step) -> tuple[nn.Module, nn.Module]:
        """Layer by layer, so that a model that fits on no device passes through it in slices."""
        for layer in step.task.layers(model) if step.task.layers else ():
            fully_shard(layer, mesh=self.mesh)
        fully_shard(model, mesh=self.mesh)
        model.to(self.ranks.device)  # what is not sharded: buffers
        return model, model

    def accumulating(self, wrapped: nn.Module) -> AbstractContextManager[None]:
        return _without_reduction(wrapped)

    def sync_buffers(self, model: nn.Module) -> None:
        for buffer in model.buffers():
            dist.broadcast(buffer, src=0)


@contextmanager
def _without_reduction(wrapped: Any) -> Iterator[None]:
    wrapped.set_requires_gradient_sync(False)
    try:
        yield
    finally:
        wrapped.set_requires_gradient_sync(True)


def build(ranks: Ranks, options: Options) -> Strategy:
    return FullyShardedData(ranks, options)
