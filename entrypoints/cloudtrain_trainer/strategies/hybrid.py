"""Data x tensor (`--tensor N`) or data x pipeline (`--stages N`) over a mesh of ranks.

When: models that neither kind fits alone: tensor parallelism inside a node and sharded data
parallelism between nodes, or several pipelines of a few stages each. Data x tensor is FSDP2 around
tensor parallelism: memory divided by all ranks. DDP around tensor parallelism fails in torch
("mixed torch.Tensor and DTensor") and is not offered. Data x pipeline is one DDP per stage: memory
divided by the stages. Communication: of both kinds, each inside its dimension of the mesh; ranks
that split a sample are neighbours.

Source: Narayanan et al., "Efficient Large-Scale Language Model Training on GPU Clusters Using
Megatron-LM", SC 2021; Liang et al., "TorchTitan", 2024.
"""

from __future__ import annotations

import warnings

import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor

from cloudtrain_trainer.options import Options
from cloudtrain_trainer.ranks import Ranks
from cloudtrain_trainer.strategies import Step, Strategy
from cloudtrain_trainer.strategies.fsdp import FullyShardedData
from cloudtrain_trainer.strategies.pipeline import Pipeline
from cloudtrain_trainer.strategies.tp import SplitLogits, parallelize


class DataByTensor(SplitLogits, FullyShardedData):
    """FSDP2 over groups of ranks that split each matrix (tensor parallelism)."""

    compiles_whole = False  # torch cannot compile an embedding that is split over ranks

    def __init__(self, ranks: Ranks, options: Options, tensor: int) -> None:
        super().__init__(ranks, options)
        self.tensor = tensor
        self.data_rank = ranks.rank // tensor
        self.data_ranks = ranks.size // tensor
        self.reports_metrics = ranks.rank % tensor == 0

    def make_mesh(self) -> DeviceMesh:
        sizes = self.data_ranks, self.tensor
        self.mesh_2d = init_device_mesh(
            self.ranks.device.type, sizes, mesh_dim_names=("data", "tensor")
        )
        return self.mesh_2d["data"]

    def start(self) -> None:
        super().start()
        # torch warns of in-place changes that bypass FSDP whenever a split layer returns a view;
        # there are none here.
        warnings.filterwarnings("ignore", "FSDP2-wrapped module .* returned a view tensor")

    def wrap(self, model: nn.Module, step: Step) -> tuple[nn.Module, nn.Module]:
        parallelize(model, step, self.mesh_2d["tensor"])
        return super().wrap(model, step)

    def sync_buffers(self, model: nn.Module) -> None:
        """Also broadcast parameters that are not split.

        Several ranks compute them, and differ in the last bits on a GPU.
        """
        super().sync_buffers(model)
        for parameter in model.parameters():
            if isinstance(parameter, DTensor) and parameter.device_mesh.ndim == 1:
                dist.broadcast(
                    parameter.to_local().detach(),
                    group=self.mesh_2d.get_group("tensor"),
                    group_src=0,
                )


def build(ranks: Ranks, options: Options) -> Strategy:
    if options.tensor:
        return DataByTensor(ranks, options, options.tensor)
    return Pipeline(ranks, options, options.stages or 1)
