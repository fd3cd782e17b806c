"""One optimizer step: forward and backward passes of its parts, clipping, the update."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor

from cloudtrain_trainer import hardware, state
from cloudtrain_trainer.measure import LossMean
from cloudtrain_trainer.options import Options
from cloudtrain_trainer.schedule import lr_factor
from cloudtrain_trainer.strategies import Strategy
from cloudtrain_trainer.tasks import Task

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}
FAST_ON: tuple[str, ...] = ("cuda",)
"""Devices on which convolutions like their channels last, and AdamW is one kernel."""


class Step:
    """This rank's part of the model, its optimizer, and what a step does with them."""

    def __init__(self, task: Task, strategy: Strategy, options: Options, batch_size: int) -> None:
        self.task, self.strategy, self.options, self.batch_size = task, strategy, options, batch_size
        self.device = strategy.ranks.device
        self.amp = hardware.precision(options.amp, self.device)
        self.lr = options.lr or task.lr
        self.parts = options.accumulate if strategy.cuts == 1 else 1
        """Forward and backward passes per rank and step."""
        self.loss = LossMean(self.device)

        state.seed_generators(options.seed)  # the same weights on all ranks
        model = task.model()
        self._image_format: dict[str, Any] = {}
        if task.channels_last and self.device.type in FAST_ON:
            self._image_format = {"memory_format": torch.channels_last}
            if not strategy.slices:  # cuDNN follows the inputs, too
                model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        if options.compile:
            hardware.check_compiler(self.device)
            for layer in task.layers(model) if task.layers and strategy.communicates else [model]:
                layer.compile()  # in place: names stay
        self.model, self.wrapped = strategy.wrap(model, self)
        del model  # of a pipeline, only this rank's stage goes on
        self._alike = _alike([p for p in self.model.parameters() if p.requires_grad])
        self.optimizer = torch.optim.AdamW(
            [{"params": group} for group in self._alike],
            lr=self.lr,
            weight_decay=task.weight_decay if options.weight_decay is None else options.weight_decay,
            fused=self.device.type in FAST_ON,
        )
        self.scaler = torch.amp.GradScaler(self.device.type) if self.amp == "fp16" else None

    def take(self, batches: Iterator[tuple[Tensor, Tensor]], step: int, steps: int) -> None:
        """Learn from the next parts: the gradient is that of the mean loss over the global batch."""
        for _ in range(self.parts - 1):
            with self.strategy.accumulating(self.wrapped):
                self.learn(*next(batches))
        self.learn(*next(batches))
        rate = self.lr * lr_factor(step, steps, self.options.lr_schedule, self.options.warm_up)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        if self.scaler is None:
            self._clip()
            self.optimizer.step()
        else:
            self.scaler.unscale_(self.optimizer)
            self._clip()
            self.scaler.step(self.optimizer)
            self.scaler.update()
        self.optimizer.zero_grad(set_to_none=True)

    def learn(self, inputs: Tensor, targets: Tensor) -> None:
        """Forward and backward pass of one part."""
        self.strategy.learn(self, *self.to_device(inputs, targets))

    def counted_loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The weighted loss of one part, which also goes into the mean that is told."""
        with self.precision():
            loss = self.task.loss(outputs, targets)
        if self.strategy.counts:
            self.loss.add(loss.to(self.device), len(targets))
        loss = loss * self.weight(len(targets))
        return loss if self.scaler is None else self.scaler.scale(loss)

    def weight(self, samples: int) -> float:
        """What the mean loss over so many samples counts in a step.

        Gradients are averaged over the ranks that share the batch, and parts may differ in size by one.
        """
        return samples * self.strategy.data_ranks / self.batch_size

    def precision(self) -> AbstractContextManager[Any]:
        """The context of forward passes."""
        if self.amp == "no":
            return nullcontext()
        return torch.autocast(self.device.type, dtype=DTYPES[self.amp])

    def to_device(self, inputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        on_device = inputs.to(self.device, non_blocking=True, **self._image_format)
        return on_device, targets.to(self.device, non_blocking=True)

    def _clip(self) -> None:
        """Shorten the gradient to the norm that was asked for: the norm over all ranks' parameters."""
        if self.options.clip_norm is None:
            return
        factor = (self.options.clip_norm / (self.gradient_norm() + 1e-6)).clamp(max=1.0)
        for grad in (grad for grads in self._gradients() for grad in grads):
            local = grad.to_local() if hasattr(grad, "to_local") else grad
            local.mul_(factor.to(local.device))

    def gradient_norm(self) -> Tensor:
        """Of all ranks' parameters together, each counted once; called by all ranks."""
        squares = [self._square(grads).to(self.device) for grads in self._gradients()]
        total = torch.stack(squares).sum() if squares else torch.zeros((), device=self.device)
        return self.strategy.square_sum(total.sqrt()).sqrt()

    def _gradients(self) -> list[list[Tensor]]:
        groups = [[p.grad for p in group if p.grad is not None] for group in self._alike]
        return [grads for grads in groups if grads]

    def _square(self, grads: list[Tensor]) -> Tensor:
        norm = torch.nn.utils.get_total_norm(grads)
        whole: Tensor = norm.full_tensor() if hasattr(norm, "full_tensor") else norm
        return whole.square()


def _alike(parameters: list[Tensor]) -> list[list[Tensor]]:
    """In groups that torch takes in one kernel, or one norm of: those that are sharded alike, or not at all."""
    groups: dict[Any, list[Tensor]] = {}
    for parameter in parameters:
        how = (getattr(parameter, "device_mesh", None), getattr(parameter, "placements", None), parameter.device)
        groups.setdefault(how, []).append(parameter)
    return list(groups.values())
