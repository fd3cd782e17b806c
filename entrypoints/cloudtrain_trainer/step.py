"""One optimizer step: forward and backward passes of its parts, clipping, the update; a bad step is noted or left out.

A step is bad if its loss or a gradient is not a finite number (finite.py).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor

from cloudtrain_trainer import finite, hardware, state
from cloudtrain_trainer.finite import FiniteWatch
from cloudtrain_trainer.metrics import LossMean
from cloudtrain_trainer.options import Options
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
        self.skips = options.on_nan == "skip"
        self._asynchronous = self.device.type in FAST_ON
        self.watch = FiniteWatch(self.device, self.skips, self._asynchronous)
        self.loss = self.new_mean()
        self._nothing = self._own_loss = torch.zeros((), device=self.device)
        """The sum of the losses of this step's parts: finite only if they all are."""

        state.seed_generators(options.seed)  # the same weights on all ranks
        model = task.model()
        self._image_format: dict[str, Any] = {}
        if task.channels_last and self.device.type in FAST_ON:
            self._image_format = {"memory_format": torch.channels_last}
            if not strategy.slices:  # cuDNN follows the inputs, too
                model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        if options.compile:
            hardware.check_compile(self.device)
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

    def new_mean(self) -> LossMean:
        """For the training loss of another epoch."""
        return LossMean(self.device, finite=self.skips)

    def take(self, batches: Iterator[tuple[Tensor, Tensor]], step: int, steps: int) -> None:
        """Learn from the next parts: the gradient is that of the mean loss over the global batch."""
        before = self._buffers() if self.skips else {}
        self._own_loss = self._nothing
        for _ in range(self.parts - 1):
            with self.strategy.accumulating(self.wrapped):
                self.learn(*next(batches))
        self.learn(*next(batches))
        rate = self.lr * lr_factor(step, steps, self.options.lr_schedule, self.options.warm_up)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        bad = self._update_scaled(step) if self.scaler is not None else self._update(step)
        if self.skips:
            state.restore_buffers_where(bad, self.model, before, self._statistics())
        self.optimizer.zero_grad(set_to_none=True)

    def _update(self, step: int) -> Tensor:
        """Change the weights, unless the step is bad and to be left out; whether it is bad, on the device."""
        norm = self._clip()
        bad = self._agreed(self._is_bad(self._own_loss, norm))
        self.watch.note(step + 1, self._own_loss, norm, bad)
        if not self.skips:
            self.optimizer.step()
        elif self.optimizer.defaults["fused"]:  # its kernel looks by itself: nobody waits for the device
            self.optimizer.found_inf = bad.float()  # type: ignore[attr-defined]
            self.optimizer.step()
        elif not bool(bad):
            self.optimizer.step()
        return bad

    def _update_scaled(self, step: int) -> Tensor:
        """The same in fp16, whose scaler leaves out steps with gradients that overflow, and scales the next less.

        Such a step is no bad one, unless there is nothing left to scale.
        """
        assert self.scaler is not None  # noqa: S101  (asked by the caller)
        bad = self._agreed(self._is_bad(self._own_loss))
        gradients = self._gradients()
        if self.skips and gradients:  # the scaler looks at the gradients alone: it gets one that is bad
            gradients[0][0].add_(torch.where(bad, torch.nan, 0.0))
        self.scaler.unscale_(self.optimizer)
        norm, scale = self._clip(), self.scaler.scale(torch.ones((), device=self.device))
        bad = bad | (self._is_bad(norm) & (scale <= finite.LEAST_SCALE))
        self.watch.note(step + 1, self._own_loss, norm, bad)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        return bad

    def _is_bad(self, *values: Tensor) -> Tensor:
        """Whether one of them is no finite number. The host looks by itself where it need not wait: it is faster."""
        if self._asynchronous:
            return ~torch.isfinite(torch.stack(values)).all()
        return torch.tensor(not all(math.isfinite(float(value)) for value in values))

    def _agreed(self, bad: Tensor) -> Tensor:
        """Whether it is so on any rank, where all must leave out the same steps; else all hear of it when they ask."""
        return self.strategy.ranks.any_on_device(bad) if self.skips else bad

    def learn(self, inputs: Tensor, targets: Tensor) -> None:
        """Forward and backward pass of one part."""
        self.strategy.learn(self, *self.to_device(inputs, targets))

    def backward(self, loss: Tensor, samples: int) -> None:
        """From the mean loss of one part, which is counted, to the gradients."""
        self.count(loss, samples)
        loss = loss * self.weight(samples)
        (loss if self.scaler is None else self.scaler.scale(loss)).backward()  # type: ignore[no-untyped-call]

    def count(self, loss: Tensor, samples: int) -> None:
        """Note the mean loss of one part; ranks that see the same samples count them once."""
        loss = loss.detach().to(self.device)
        self._own_loss = loss if self._own_loss is self._nothing else self._own_loss + loss
        if self.strategy.counts:
            self.loss.add(loss, samples)

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

    def _clip(self) -> Tensor:
        """Shorten the gradient to the norm that was asked for: the norm over all ranks' parameters.

        Returns the norm that was there before, or of this rank's part alone if nothing is to be clipped: no message.
        """
        if self.options.clip_norm is None:
            return self._own_norm()
        norm = self.gradient_norm()
        factor = (self.options.clip_norm / (norm + 1e-6)).clamp(max=1.0)
        for grad in (grad for grads in self._gradients() for grad in grads):
            local = _local(grad)
            local.mul_(factor.to(local.device))
        return norm

    def _own_norm(self) -> Tensor:
        """Finite only if the gradients that this rank holds are; which of them are copies does not matter for that."""
        found = [
            torch.stack(torch._foreach_norm([_local(grad) for grad in grads])).sum().to(self.device)
            for grads in self._gradients()
        ]
        return sum(found[1:], found[0]) if found else self._nothing

    def gradient_norm(self) -> Tensor:
        """Of all ranks' parameters together, each counted once; called by all ranks."""
        squares = [self._square(grads).to(self.device) for grads in self._gradients()]
        total = torch.stack(squares).sum() if squares else torch.zeros((), device=self.device)
        return self.strategy.square_sum(total.sqrt()).sqrt()

    def _buffers(self) -> dict[str, Tensor]:
        """What forward passes leave in the model, such as the statistics of batch norm: bad numbers stay there."""
        return state.buffers(self.model, self._statistics())

    def _statistics(self) -> Sequence[Tensor]:
        return self.task.statistics(self.model)

    def _gradients(self) -> list[list[Tensor]]:
        groups = [[p.grad for p in group if p.grad is not None] for group in self._alike]
        return [grads for grads in groups if grads]

    def _square(self, grads: list[Tensor]) -> Tensor:
        norm = torch.nn.utils.get_total_norm(grads)
        whole: Tensor = norm.full_tensor() if hasattr(norm, "full_tensor") else norm
        return whole.square()


def _local(tensor: Tensor) -> Tensor:
    """This rank's part."""
    local: Tensor = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    return local


def _alike(parameters: list[Tensor]) -> list[list[Tensor]]:
    """In groups that torch takes in one kernel, or one norm of: those that are sharded alike, or not at all."""
    groups: dict[Any, list[Tensor]] = {}
    for parameter in parameters:
        how = (getattr(parameter, "device_mesh", None), getattr(parameter, "placements", None), parameter.device)
        groups.setdefault(how, []).append(parameter)
    return list(groups.values())


def lr_factor(step: int, steps: int, kind: str = "cosine", warm_up: float = 0.1) -> float:
    """The learning rate at a step (from 0) as a share of the highest: a linear rise, then what `kind` says.

    `kind`: cosine or linear, to zero at the last step; constant. `warm_up`: the rise's share of all steps.
    """
    rise = max(1, int(warm_up * steps)) if warm_up else 0
    if step < rise:
        return (step + 1) / rise
    passed = (step - rise) / max(1, steps - rise)
    if kind == "cosine":
        return 0.5 * (1 + math.cos(math.pi * passed))
    return 1 - passed if kind == "linear" else 1.0
