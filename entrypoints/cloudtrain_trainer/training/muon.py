"""Muon: a step along the nearest orthogonal matrix of each matrix's momentum. For matrices of
hidden layers alone.

A shard's orthogonal matrix is not the shard of the matrix's: the momentum of matrices that are
sharded is gathered, in bf16, and each rank computes the whole and keeps its shard. Matrices of one
shape are gathered and computed together, a few kernels for all of them. What a task has joined into
one matrix, such as query, key and value, counts as several.

Source: K. Jordan et al., "Muon: An optimizer for hidden layers in neural networks", 2024; J. Liu et
al., "Muon is Scalable for LLM Training", arXiv:2502.16982 (steps of the size of AdamW's);
torch/optim/_muon.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor, Shard, distribute_tensor
from torch.distributed.tensor.placement_types import _StridedShard

from cloudtrain_trainer.models.matrices import Rows
from cloudtrain_trainer.training.gradients import grouped, sharding

MOMENTUM = 0.95
ROUNDS = 5
A = 3.4445
B = -4.7750
C = 2.0315
"""Of the polynomial of each round, which brings singular values of 0 to 1 near 1 quickly (Jordan et
al.).
"""
SCALE = 0.2
"""Times the root of the longer side: the root mean square of AdamW's steps (Liu et al., section
2.2).
"""
SMALLEST_NORM = 1e-7
MAX_ELEMENTS = 1 << 26
"""Of matrices that are gathered and computed together: 128 MiB in bf16, and three times as much to
compute with.
"""


class Muon(torch.optim.Optimizer):
    """Muon with Nesterov momentum and decoupled weight decay, for parameters of two dimensions.

    Each group has `rows`, how its matrices are joined. Called by all ranks that share a matrix.
    """

    def __init__(self, groups: Iterable[dict[str, Any]], lr: float) -> None:
        super().__init__(groups, {"lr": lr, "weight_decay": 0.0, "rows": Rows()})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Update the parameters that have a gradient."""
        loss = None if closure is None else closure()
        for group in self.param_groups:
            parameters = [parameter for parameter in group["params"] if parameter.grad is not None]
            for alike in grouped(parameters, lambda p: (sharding(p), p.shape)):
                for some in _chunks(alike):
                    self._update(some, group)
        return loss

    def _update(self, parameters: list[Tensor], group: dict[str, Any]) -> None:
        """Update parameters of one shape that are sharded alike."""
        weights = [_local(parameter) for parameter in parameters]
        directions = _orthogonal_shards(self._momentum(parameters), parameters[0], group["rows"])
        rows, columns = parameters[0].shape
        size = SCALE * max(rows // group["rows"].parts, columns) ** 0.5
        torch._foreach_mul_(weights, 1 - group["lr"] * group["weight_decay"])
        torch._foreach_add_(
            weights, list(directions.to(weights[0].dtype)), alpha=-group["lr"] * size
        )

    def _momentum(self, parameters: list[Tensor]) -> Tensor:
        """This rank's shards of the Nesterov momentum, in bf16, (parameters, rows, columns)."""
        for parameter in parameters:
            if "momentum_buffer" not in self.state[parameter]:
                self.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)
        gradients: list[Any] = [parameter.grad for parameter in parameters]
        gradients = [_local(gradient) for gradient in gradients]
        momentum = [_local(self.state[parameter]["momentum_buffer"]) for parameter in parameters]
        torch._foreach_lerp_(momentum, gradients, 1 - MOMENTUM)
        return torch.stack(
            [each.bfloat16() for each in torch._foreach_lerp(gradients, momentum, MOMENTUM)]
        )


def _orthogonal_shards(shards: Tensor, like: Tensor, rows: Rows) -> Tensor:
    """This rank's shards of the orthogonal matrices. `shards`: (matrices, rows, columns), each
    sharded as `like` is.
    """
    if not isinstance(like, DTensor):
        return _orthogonal_parts(shards, rows)
    placements = [_of_stack(placement) for placement in like.placements]
    shape = torch.Size((len(shards), *like.shape))
    stride = (shape[1] * shape[2], shape[2], 1)
    stack = DTensor.from_local(
        shards, like.device_mesh, placements, run_check=False, shape=shape, stride=stride
    )
    whole = _orthogonal_parts(stack.full_tensor(), rows)
    # Without `src_data_rank` each rank keeps a shard of its own result: nothing is sent.
    return distribute_tensor(whole, like.device_mesh, placements, src_data_rank=None).to_local()


def _of_stack(placement: Any) -> Any:
    """How a stack of tensors is sharded, from how each tensor is: the stack has one more dimension
    before.
    """
    if isinstance(placement, _StridedShard):
        return _StridedShard(placement.dim + 1, split_factor=placement.split_factor)
    return Shard(placement.dim + 1) if isinstance(placement, Shard) else placement


def _orthogonal_parts(matrices: Tensor, rows: Rows) -> Tensor:
    """The orthogonal matrix of each part of each matrix, at its place in the matrix."""
    if rows.parts == 1:
        return orthogonal(matrices)
    count, height, width = matrices.shape
    parts = matrices.view(count, rows.groups, rows.parts, -1, width).transpose(1, 2)
    found = orthogonal(parts.reshape(count * rows.parts, -1, width))
    return (
        found.view(count, rows.parts, rows.groups, -1, width)
        .transpose(1, 2)
        .reshape(count, height, width)
    )


def orthogonal(matrices: Tensor) -> Tensor:
    """About the nearest orthogonal matrix of each: its singular values, which become 0.7 to 1.2.
    (n, rows, columns).
    """
    is_tall = matrices.shape[1] > matrices.shape[2]
    x = matrices.mT if is_tall else matrices
    x = x / torch.linalg.vector_norm(x, dim=(1, 2), keepdim=True).clamp(min=SMALLEST_NORM)
    for _ in range(ROUNDS):
        gram = torch.bmm(x, x.mT)
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=B, alpha=C), x, beta=A)
    return x.mT if is_tall else x


def _chunks(parameters: list[Tensor]) -> Iterator[list[Tensor]]:
    """Parameters of one shape, as many at a time as may be computed together."""
    count = max(1, MAX_ELEMENTS // parameters[0].numel())
    for first in range(0, len(parameters), count):
        yield parameters[first : first + count]


def _local(tensor: Tensor) -> Tensor:
    """This rank's shard."""
    local: Tensor = tensor.to_local() if isinstance(tensor, DTensor) else tensor
    return local
