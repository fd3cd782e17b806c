"""One process, the model cut by stages over the devices of this machine.

When: the model does not fit on one GPU, the machine has several, and simplicity counts more than speed: one device
computes at a time while the others wait, so pipeline or fsdp is faster with as many GPUs. Memory: parameters,
gradients and optimizer state divided by the number of stages (`--stages`, by default one per GPU). Communication: the
activations at the borders, between devices of one machine. Without a GPU the stages lie on the CPU: values are right,
nothing is gained.

Source: PyTorch's tutorial "Single-Machine Model Parallel Best Practices" (a ResNet-50 cut in two).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from cloudtrain_trainer.hardware import every_gpu
from cloudtrain_trainer.options import Options
from cloudtrain_trainer.ranks import Ranks
from cloudtrain_trainer.strategies import Strategy

if TYPE_CHECKING:
    from cloudtrain_trainer.step import Step


class ModelParallel(Strategy):
    @property
    def devices(self) -> list[torch.device]:
        return self._places

    def wrap(self, model: nn.Module, step: Step) -> tuple[nn.Module, nn.Module]:
        assert step.task.stages is not None  # noqa: S101  (rules.py has refused the others)
        there = every_gpu(self.ranks.device)
        count = self.options.stages or min(max(len(there), 2), step.task.most_stages)
        self._places = there[:count]
        return model, Chain(step.task.stages(model, count), [there[i % len(there)] for i in range(count)])

    def learn(self, step: Step, inputs: Tensor, targets: Tensor) -> None:
        with step.precision():
            outputs = step.wrapped(inputs)
            loss = step.task.loss(outputs, targets.to(self._last(step)))
        step.backward(loss, len(targets))

    def outputs(self, step: Step, inputs: Tensor) -> Tensor | None:
        with step.precision():
            outputs: Tensor = step.wrapped(inputs)
        return outputs.to(self.ranks.device)

    def square_sum(self, norm: Tensor) -> Tensor:
        return norm.square().to(self.ranks.device)

    @staticmethod
    def _last(step: Step) -> torch.device:
        assert isinstance(step.wrapped, Chain)  # noqa: S101  (made above)
        return step.wrapped.places[-1]


class Chain(nn.Module):
    """Stages that call each other across devices."""

    def __init__(self, stages: Sequence[nn.Module], places: Sequence[torch.device]) -> None:
        super().__init__()
        self.places = list(places)
        self.stages = nn.ModuleList(stage.to(place) for stage, place in zip(stages, places, strict=True))

    def forward(self, values: Tensor) -> Tensor:
        for stage, place in zip(self.stages, self.places, strict=True):
            values = stage(values.to(place, non_blocking=True))
        return values


def build(ranks: Ranks, options: Options) -> Strategy:
    return ModelParallel(ranks, options)
