"""Gradients of a step: norm over all ranks, and clipping, in a few kernels for all parameters."""

from __future__ import annotations

from collections.abc import Callable, Hashable

import torch
from torch import Tensor

from cloudtrain_trainer.strategies import Strategy


class Gradients:
    """The gradients of the parameters that are trained, in groups that are sharded alike."""

    def __init__(self, parameters: list[Tensor], strategy: Strategy) -> None:
        self._groups = grouped(parameters, sharding)
        self._strategy = strategy
        self._device = strategy.ranks.device

    def by_sharding(self) -> list[list[Tensor]]:
        """Return the gradients, in lists that are sharded alike."""
        gradients = [[p.grad for p in group if p.grad is not None] for group in self._groups]
        return [grads for grads in gradients if grads]

    def clip(self, max_norm: float) -> Tensor:
        """Scale them down to `max_norm`, in place; return the norm before, as `norm`.

        Called by all ranks.
        """
        norm = self.norm()
        factor = (max_norm / (norm + 1e-6)).clamp(max=1.0)
        for grads in self.by_sharding():
            local = [_local(grad) for grad in grads]
            torch._foreach_mul_(local, factor.to(local[0].device))
        return norm

    def norm(self) -> Tensor:
        """Return the norm of all ranks' gradients, each parameter counted once.

        It is a tensor of shape () on the device. Called by all ranks.
        """
        norms = [_norm(grads).to(self._device) for grads in self.by_sharding()]
        if len(norms) > 1:
            norms = [torch.linalg.vector_norm(torch.stack(norms))]
        return self._strategy.total_norm(
            norms[0] if norms else torch.zeros((), device=self._device)
        )

    def local_norm(self) -> Tensor:
        """Return a tensor of shape () that is finite only if this rank's gradients are.

        Unlike `norm` it needs no message.
        """
        norms = [
            torch.stack(torch._foreach_norm([_local(grad) for grad in grads]))
            .sum()
            .to(self._device)
            for grads in self.by_sharding()
        ]
        return sum(norms[1:], norms[0]) if norms else torch.zeros((), device=self._device)


def _norm(grads: list[Tensor]) -> Tensor:
    """Return the norm of gradients that are sharded alike, over all shards: shape ()."""
    if hasattr(grads[0], "full_tensor"):
        whole: Tensor = torch.nn.utils.get_total_norm(grads).full_tensor()  # type: ignore[attr-defined]
        return whole
    norm: Tensor = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(grads)))
    return norm


def _local(tensor: Tensor) -> Tensor:
    """Return this rank's shard."""
    local: Tensor = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    return local


def grouped(parameters: list[Tensor], key: Callable[[Tensor], Hashable]) -> list[list[Tensor]]:
    """Return groups of parameters with the same key, in their order."""
    groups: dict[Hashable, list[Tensor]] = {}
    for parameter in parameters:
        groups.setdefault(key(parameter), []).append(parameter)
    return list(groups.values())


def sharding(parameter: Tensor) -> Hashable:
    """Return how and where a parameter is sharded: kernels and norms take equal ones only."""
    return (
        getattr(parameter, "device_mesh", None),
        getattr(parameter, "placements", None),
        parameter.device,
    )
