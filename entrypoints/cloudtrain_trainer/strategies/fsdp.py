"""FSDP2: each rank holds a shard of every parameter, and gathers a layer to compute it.

`fsdp`, over all ranks. When: the model, its gradients or the optimizer state do not fit on one
device. Memory: parameters, gradients and optimizer state divided by the number of ranks, plus one
complete layer at a time.
Communication: per micro-batch the parameters are gathered twice (forward and backward) and the
gradients reduced once, 1.5 times what ddp sends. Accumulated micro-batches are reduced, too, since
unreduced gradients would be complete on every rank. In bf16, parameters are gathered in bf16, half
the bytes, and gradients are reduced in float32. A model with batch norm is gathered in float32, and
autograd keeps bf16 copies of its weights until the backward pass. Batch norm's statistics differ
between ranks until an evaluation or checkpoint, when all take rank 0's.

Prefetching is torch's: in the forward pass the host runs ahead of the GPU, so the next layer is
gathered while one computes; in the backward pass torch asks for the next one beforehand
(`_backward_prefetch`).

`hsdp`, over a mesh of replicas x shards: sharded in a group, replicated between groups. When: fsdp
on many nodes, if gathering over the network between nodes costs more than the memory it saves.
Memory: as fsdp with `--shard` ranks, by default a node's. Communication: gathers and reductions
stay inside the group; between groups there is one all-reduce per step of each rank's shard of the
gradients, 1/shard of what ddp sends, for any number of accumulation steps.

Sources: Zhao et al., "PyTorch FSDP: Experiences on Scaling Fully Sharded Data Parallel", VLDB 2023
(section 3.2.2: hybrid sharding); Zhang et al., "MiCS", VLDB 2022; Rajbhandari et al., "ZeRO", SC
2020; torch/distributed/fsdp/_fully_shard.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.nn.modules.batchnorm import _BatchNorm

from cloudtrain_trainer import hardware
from cloudtrain_trainer.options import Options
from cloudtrain_trainer.ranks import Ranks
from cloudtrain_trainer.strategies import ModelWithLoss, Step, Strategy, layers_of


class FullyShardedData(Strategy):
    """FSDP2 over all ranks."""

    communicates_in_forward = shards_parameters = True
    oom_hint = "use more ranks, or larger machines"

    def __init__(self, ranks: Ranks, options: Options) -> None:
        super().__init__(ranks, options)
        self.shard_group_size = ranks.size

    def start(self) -> None:
        self.ranks.init_process_group(self.options.backend)
        self.mesh = self.make_mesh()

    def make_mesh(self) -> DeviceMesh:
        """Return the device mesh whose ranks share one copy of the model."""
        return init_device_mesh(
            self.ranks.device.type, (self.ranks.size,), mesh_dim_names=("shard",)
        )

    def wrap(self, model: nn.Module, step: Step) -> tuple[nn.Module, nn.Module]:
        """Shard layer by layer, so that the device never holds the whole model."""
        policy = _policy(model, step.amp)
        layers = layers_of(model, step)
        if step.compiles:
            hardware.compile_each(layers)
        for layer in layers:
            fully_shard(layer, mesh=self.mesh, mp_policy=policy)

        fully_shard(model, mesh=self.mesh, mp_policy=policy)
        model.to(step.device)

        return model, self.with_loss(model, step)


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


def _policy(model: nn.Module, amp: str) -> MixedPrecisionPolicy:
    """Return a policy that gathers in bf16 and reduces in float32; all float32 with batch norm."""
    if amp != "bf16" or any(isinstance(module, _BatchNorm) for module in model.modules()):
        return MixedPrecisionPolicy()
    return MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)


def build(ranks: Ranks, options: Options) -> Strategy:
    kind = HybridShardedData if options.strategy == "hsdp" else FullyShardedData
    return kind(ranks, options)
