"""Tensor parallelism: each matrix is split over ranks, which compute a part of a sample.

`tp`, over all ranks. When: one layer or one sample is too large for one device, or the batch cannot
be split any further; inside a node, where ranks are connected by NVLink. Memory: the matrices in
the task's plan, with gradients and optimizer state, divided by the number of ranks; parameters
outside of the plan are replicated. Communication: two all-reduces of the activations per block in
the forward pass and two in the backward pass, which do not overlap with computation. Logits that a
plan leaves split over the vocabulary are never gathered in training: the loss exchanges a number
per token.

`hybrid --tensor N`, inside groups of N neighbours, with FSDP2 around it between the groups: when
neither kind fits alone. Memory: divided by all ranks. DDP around tensor parallelism fails in torch
("mixed torch.Tensor and DTensor") and is not offered.

Sources: Shoeybi et al., "Megatron-LM", 2019; Narayanan et al., "Efficient Large-Scale Language
Model Training on GPU Clusters Using Megatron-LM", SC 2021; Liang et al., "TorchTitan", 2024;
torch/distributed/tensor/parallel.
"""

from __future__ import annotations

import warnings
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Replicate
from torch.distributed.tensor.parallel import loss_parallel, parallelize_module

from cloudtrain_trainer import hardware
from cloudtrain_trainer.options import Options
from cloudtrain_trainer.ranks import Ranks
from cloudtrain_trainer.strategies import Step, Strategy, full_tensor, layers_of
from cloudtrain_trainer.strategies.fsdp import FullyShardedData


class SplitLogits(Strategy):
    """Strategy for models whose logits may be split over classes, as DTensors."""

    def with_loss(self, model: nn.Module, step: Step) -> nn.Module:
        module = super().with_loss(model, step)
        module.register_forward_hook(
            lambda _, __, loss: loss.full_tensor() if isinstance(loss, DTensor) else loss
        )
        return module

    def _run(self, step: Step, module: nn.Module, inputs: Any, targets: Any) -> None:
        with loss_parallel():
            super()._run(step, module, inputs, targets)

    def outputs(self, step: Step, inputs: Any) -> Any:
        return full_tensor(super().outputs(step, inputs))


class TensorParallel(SplitLogits):
    """Tensor parallelism over all ranks."""

    communicates_in_forward = True
    compiles_whole = False

    def __init__(self, ranks: Ranks, options: Options) -> None:
        super().__init__(ranks, options)
        self.data_rank = 0
        self.data_ranks = 1
        self.reports_metrics = ranks.rank == 0
        self.shard_group_size = ranks.size

    def start(self) -> None:
        self.ranks.init_process_group(self.options.backend)
        self.mesh = init_device_mesh(
            self.ranks.device.type, (self.ranks.size,), mesh_dim_names=("tensor",)
        )

    def wrap(self, model: nn.Module, step: Step) -> tuple[nn.Module, nn.Module]:
        parallelize(model, step, self.mesh)
        model.to(step.device)
        if step.compiles:
            hardware.compile_each(layers_of(model, step))

        return model, self.with_loss(model, step)

    def finish_gradients(self, model: nn.Module) -> None:
        """Sum the gradients of replicated parameters over the ranks in one message.

        These are the factors of norms; each rank has the gradients of its share of the tokens.
        torch would send one message per parameter, and again if the gradients are used a second
        time, as for clipping.
        """
        partial = [
            p for p in model.parameters() if isinstance(p.grad, DTensor) and _is_partial(p.grad)
        ]
        if not partial:
            return

        whole = torch.cat([p.grad.to_local().flatten() for p in partial])  # type: ignore[union-attr]
        dist.all_reduce(whole, group=self.mesh.get_group())
        parts = torch.split(whole, [p.numel() for p in partial])

        for parameter, grad in zip(partial, parts, strict=True):
            replicated = DTensor.from_local(
                grad.view(parameter.shape), self.mesh, [Replicate()], run_check=False
            )
            parameter.grad = replicated

    def sync_buffers(self, model: nn.Module) -> None:
        """Broadcast rank 0's replicated values.

        Each rank computes them, and on a GPU they differ in the last bits.
        """
        with torch.no_grad():
            for value in model.state_dict().values():
                if not isinstance(value, DTensor):
                    dist.broadcast(value, src=0)


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


def parallelize(model: nn.Module, step: Step, mesh: DeviceMesh) -> None:
    """Split the matrices over the mesh by the task's plan, in place."""
    assert step.task.tensor_plan is not None  # noqa: S101  (rules.py has refused the others)
    parallelize_module(model, mesh, dict(step.task.tensor_plan(model)))


def _is_partial(grad: DTensor) -> bool:
    return any(placement.is_partial() for placement in grad.placements)


def build(ranks: Ranks, options: Options) -> Strategy:
    if options.tensor:
        return DataByTensor(ranks, options, options.tensor)
    return TensorParallel(ranks, options)
