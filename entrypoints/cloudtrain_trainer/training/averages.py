"""Exponential moving average of the trained weights: `--ema`.

Source: Polyak and Juditsky, "Acceleration of Stochastic Approximation by Averaging", 1992.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule


class AveragedWeights:
    """The average of each trained weight, of this rank's shard.

    Buffers, such as batch norm's statistics, are not averaged: they follow the training.
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        self._model = model
        self._decay = decay
        self._trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
        self.tensors: dict[str, Tensor] = {
            name: p.detach().to(torch.promote_types(p.dtype, torch.float32), copy=True)
            for name, p in self._trained.items()
        }
        """The averages by the names of the weights, in float32 at least."""

    def restart(self) -> None:
        """Begin anew with the current weights, in place."""
        self._copy(self._trained, self.tensors)

    @torch.no_grad()
    def update(self, step: int) -> None:
        """Move the averages towards the weights after a step, counted from 0.

        The first steps weigh more, so that the average forgets the initial weights.
        """
        averages = [_local(average) for average in self.tensors.values()]
        weights = [
            _local(weight).to(average.dtype)
            for weight, average in zip(self._trained.values(), averages, strict=True)
        ]
        torch._foreach_lerp_(averages, weights, 1 - min(self._decay, (1 + step) / (10 + step)))

    @contextmanager
    def in_model(self) -> Iterator[None]:
        """Give the model the averages for an evaluation, then its weights back."""
        weights = {name: _local(p.detach()).clone() for name, p in self._trained.items()}
        self.use()
        try:
            yield
        finally:
            self._free_gathered()
            self._copy(weights, self._trained)

    def use(self) -> None:
        """Give the model the averages."""
        self._free_gathered()
        self._copy(self.tensors, self._trained)

    @torch.no_grad()
    def _copy(self, sources: Mapping[str, Tensor], targets: Mapping[str, Tensor]) -> None:
        for name, source in sources.items():
            _local(targets[name]).copy_(_local(source))

    def _free_gathered(self) -> None:
        """Make FSDP gather weights again, where it keeps them from one pass to the next."""
        for module in self._model.modules():
            if isinstance(module, FSDPModule):
                module.reshard()


def _local(tensor: Tensor) -> Tensor:
    local: Tensor = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    return local
