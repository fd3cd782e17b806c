"""Sharded inside a group of ranks, copied between groups: FSDP2 over a mesh of replicas x shards.

When: fsdp on many nodes, where gathering over the network between nodes costs more than the memory it saves. Memory:
as fsdp with `--shard` ranks, by default those of one node. Communication: gathers and reductions stay inside the
group; between groups one all-reduce of each rank's slice of the gradients per step, 1/shard of what ddp sends.

Source: Zhao et al., "PyTorch FSDP", VLDB 2023, section 3.2.2 (hybrid sharding); Zhang et al., "MiCS", VLDB 2022.
"""

from __future__ import annotations

from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from cloudtrain_trainer.options import Options
from cloudtrain_trainer.ranks import Ranks
from cloudtrain_trainer.strategies import Strategy
from cloudtrain_trainer.strategies.fsdp import FullyShardedData


class HybridShardedData(FullyShardedData):
    def __init__(self, ranks: Ranks, options: Options) -> None:
        super().__init__(ranks, options)
        self.holders = options.shard or ranks.local_size

    def make_mesh(self) -> DeviceMesh:
        sizes = self.ranks.size // self.holders, self.holders
        return init_device_mesh(self.ranks.device.type, sizes, mesh_dim_names=("replicate", "shard"))


def build(ranks: Ranks, options: Options) -> Strategy:
    return HybridShardedData(ranks, options)
