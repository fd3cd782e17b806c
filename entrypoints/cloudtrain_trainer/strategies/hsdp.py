"""FSDP2 over a mesh of replicas x shards: sharded in a group, replicated between groups.

When: fsdp on many nodes, if gathering over the network between nodes costs more than the memory it
saves. Memory: as fsdp with `--shard` ranks, by default a node's. Communication: gathers
and reductions stay inside the group; between groups there is one all-reduce per step of each rank's
shard of the gradients, 1/shard of what ddp sends, for any number of accumulation steps.

Source: Zhao et al., "PyTorch FSDP", VLDB 2023, section 3.2.2 (hybrid sharding); Zhang et al.,
"MiCS", VLDB 2022.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule

from cloudtrain_trainer.options import Options
from cloudtrain_trainer.ranks import Ranks
from cloudtrain_trainer.strategies import ModelWithLoss, Strategy
from cloudtrain_trainer.strategies.fsdp import FullyShardedData


class HybridShardedData(FullyShardedData):
    """FSDP2 inside groups of `shard_group_size` ranks."""

    def __init__(self, ranks: Ranks, options: Options) -> None:
        super().__init__(ranks, options)
        self.shard_group_size = options.shard or ranks.local_size

    @contextmanager
    def accumulation_context(self, wrapped: nn.Module) -> Iterator[None]:
        """Reduce all micro-batches except the last in the group only.

        Between groups their sum is sent once.
        """
        assert isinstance(wrapped, ModelWithLoss)  # noqa: S101  (made by `with_loss`)
        model = wrapped.model
        assert isinstance(model, FSDPModule)  # noqa: S101  (made by `fully_shard`)
        model.set_requires_all_reduce(False)
        try:
            yield
        finally:
            model.set_requires_all_reduce(True)

    def make_mesh(self) -> DeviceMesh:
        sizes = self.ranks.size // self.shard_group_size, self.shard_group_size
        return init_device_mesh(
            self.ranks.device.type, sizes, mesh_dim_names=("replicate", "shard")
        )


def build(ranks: Ranks, options: Options) -> Strategy:
    return HybridShardedData(ranks, options)
