"""Sharded inside a group of ranks, copied between groups: FSDP2 over a mesh of replicas x shards.

When: fsdp on many nodes, where gathering over the network between nodes costs more than the memory it saves. Memory:
as fsdp with `--shard` ranks, by default those of one node. Communication: gathers and reductions stay inside the
group; between groups one all-reduce of each rank's slice of the gradients per step, 1/shard of what ddp sends, however
many parts the step has.

Source: Zhao et al., "PyTorch FSDP", VLDB 2023, section 3.2.2 (hybrid sharding); Zhang et al., "MiCS", VLDB 2022.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule

from cloudtrain_trainer.options import Options
from cloudtrain_trainer.ranks import Ranks
from cloudtrain_trainer.strategies import Strategy, WithLoss
from cloudtrain_trainer.strategies.fsdp import FullyShardedData


class HybridShardedData(FullyShardedData):
    def __init__(self, ranks: Ranks, options: Options) -> None:
        super().__init__(ranks, options)
        self.holders = options.shard or ranks.local_size

    @contextmanager
    def accumulating(self, wrapped: nn.Module) -> Iterator[None]:
        """Parts of a step but the last are reduced inside the group only: between groups their sum goes once."""
        model = self._sharded(wrapped)
        model.set_requires_all_reduce(False)
        try:
            yield
        finally:
            model.set_requires_all_reduce(True)

    @staticmethod
    def _sharded(wrapped: nn.Module) -> FSDPModule:
        assert isinstance(wrapped, WithLoss)  # noqa: S101  (made by `with_loss`)
        assert isinstance(wrapped.model, FSDPModule)  # noqa: S101  (made by `fully_shard`)
        return wrapped.model

    def make_mesh(self) -> DeviceMesh:
        sizes = self.ranks.size // self.holders, self.holders
        return init_device_mesh(self.ranks.device.type, sizes, mesh_dim_names=("replicate", "shard"))


def build(ranks: Ranks, options: Options) -> Strategy:
    return HybridShardedData(ranks, options)
