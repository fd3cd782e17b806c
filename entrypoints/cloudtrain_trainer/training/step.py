"""One optimizer step: passes over its micro-batches, gradient clipping, the update."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from cloudtrain_trainer import finite, hardware, rules, state, strategies, trees
from cloudtrain_trainer.finite import FiniteWatch
from cloudtrain_trainer.options import Options
from cloudtrain_trainer.ranks import Ranks
from cloudtrain_trainer.recompute import recompute, repeated_blocks
from cloudtrain_trainer.reporting.metrics import LossMean
from cloudtrain_trainer.reporting.step_times import step_clock
from cloudtrain_trainer.rules import Refused
from cloudtrain_trainer.tasks import Task
from cloudtrain_trainer.training import optimizers
from cloudtrain_trainer.training.optimizers import AveragedWeights

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}
FUSED_ON: tuple[str, ...] = ("cuda",)
"""Device types with channels-last images and fused optimizers."""


class Step:
    """This rank's model, its optimizer, and how one step changes them."""

    def __init__(self, task: Task, ranks: Ranks, options: Options, batch_size: int) -> None:
        self.task = task
        self.ranks = ranks
        self.options = options
        self.batch_size = batch_size
        self.device = ranks.device
        self.amp = hardware.resolve_precision(options.amp, self.device)
        self.lr = options.lr or task.lr

        if options.min_lr > self.lr:
            raise Refused(
                f"--min-lr {options.min_lr:g} is above --lr {self.lr:g}: use a smaller --min-lr"
            )

        self.accumulation_steps = options.accumulate
        """Micro-batches per rank and step."""
        self.finite_watch = FiniteWatch(self.device)
        self.loss = LossMean()
        """The mean of the training loss in this epoch."""
        self._weight = 1.0
        """Weight of the mean loss of the current micro-batch."""
        self._total_weight = float(batch_size)
        """Sum of the weights of the step, over all ranks."""
        self._zero = self._local_loss = torch.zeros((), device=self.device)
        """This rank's sum of losses of the step: finite only if all of them are."""
        self.clipped_norm: Tensor | None = None
        """The latest norm of gradients before `--clip-norm`, shape (); None without it."""

        self._image_format: dict[str, Any] = {}
        self.model = self._make_model()
        self.wrapped = self._wrap()
        """The module (inputs, targets) -> mean loss that training calls."""
        self._make_optimizer()
        self.averages = AveragedWeights(self.model, options.ema) if options.ema else None
        """The weights to evaluate and save, with `--ema`."""
        self.clock = step_clock(self.device, self.wrapped)
        """Clock of this rank's phases."""
        self.scaler = torch.amp.GradScaler(self.device.type) if self.amp == "fp16" else None

    def _make_model(self) -> nn.Module:
        task = self.task
        state.seed_generators(self.options.seed)  # all ranks start with the same weights
        model = task.model()

        if task.channels_last and self.device.type in FUSED_ON:
            self._image_format = {"memory_format": torch.channels_last}
            model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        if task.channels_last and self.device.type == "cuda":  # all images have one size
            torch.backends.cudnn.benchmark = not torch.are_deterministic_algorithms_enabled()

        if self.options.recompute != "none":
            recompute(task.layers(model) if task.layers else repeated_blocks(model))

        return model.to(self.device)

    def _wrap(self) -> nn.Module:
        options = self.options
        possible = rules.can_compile(options) and self.task.compiles
        self.compiles = hardware.resolve_compile(
            options.compile, self.device, possible, self.ranks.log
        )
        return strategies.wrap(
            options.strategy,
            self.model,
            self.task,
            self.ranks,
            self.precision,
            compiles=self.compiles,
        )

    def _make_optimizer(self) -> None:
        options = self.options
        trained: dict[str, Tensor] = {
            name: p for name, p in self.model.named_parameters() if p.requires_grad
        }
        self.trained = list(trained.values())
        decay = self.task.weight_decay if options.weight_decay is None else options.weight_decay
        fused = self.device.type in FUSED_ON
        self.optimizer = optimizers.build(
            options.optimizer, trained, self.lr, decay, options.betas, fused=fused
        )
        self.group_numbers = optimizers.GroupNumbers(self.optimizer)

    def train_step(self, batches: Iterator[tuple[Any, Any]], step: int, steps: int) -> None:
        """Train on the next micro-batches: one step with the gradient of the global mean loss.

        `batches`: this rank's (inputs, targets) per micro-batch. `step`, of `steps` in the run,
        counts from 0.
        """
        self.clock.begin_step()
        if self.task.weight is not None:
            batches = self._weigh(batches)

        self._local_loss = self._zero
        for _ in range(self.accumulation_steps - 1):
            with strategies.accumulating(self.wrapped):
                self._train_on_next(batches)

        self._train_on_next(batches)
        self.clock.enter("optimizer")
        self._set_rates(step, steps)
        self._update(step)
        if self.averages is not None:
            self.averages.update(step)

        self.optimizer.zero_grad(set_to_none=True)
        self.clock.end_step()

    def _set_rates(self, step: int, steps: int) -> None:
        options = self.options
        floor = options.min_lr / self.lr
        factor = lr_factor(step, steps, options.lr_schedule, options.warm_up, floor)
        self.group_numbers.scale_rates(factor)

    def _weigh(self, batches: Iterator[tuple[Any, Any]]) -> Iterator[tuple[Any, Any]]:
        """Return the micro-batches of this step, after summing their weights over all ranks."""
        micro_batches = [next(batches) for _ in range(self.accumulation_steps)]
        mine = sum(self.weigh(*batch) for batch in micro_batches)
        self.clock.enter("communication")
        (total,) = self.ranks.all_reduce_sum(mine)
        self._total_weight = total or 1.0

        return iter(micro_batches)

    def _train_on_next(self, batches: Iterator[tuple[Any, Any]]) -> None:
        """Wait for the next micro-batch, and add its gradients."""
        self.clock.enter("data")
        batch = next(batches)
        self.clock.enter("compute")
        self.forward_backward(*batch)

    def forward_backward(self, inputs: Any, targets: Any) -> None:
        """Run the passes of one micro-batch: inputs (batch, ...), targets (batch, ...).

        They may be on any device. Raise `Refused` with the names of parameters that the last step
        did not use, if that keeps ranks waiting for their gradients.
        """
        try:
            self._pass(self.wrapped, inputs, targets)
        except RuntimeError as error:
            strategies.refuse_unused_parameters(error, self.model)
            raise

    def forward_backward_alone(self, inputs: Any, targets: Any) -> None:
        """Do the same without peers and without the compiler, before training.

        A graph compiled outside of DDP's wrapper would be reused inside, where torch splits graphs
        at DDP's buckets so that gradients are sent while others are computed.
        """
        with hardware.run_eagerly():
            self._pass(strategies.without_peers(self.wrapped), inputs, targets)

    def _pass(self, module: nn.Module, inputs: Any, targets: Any) -> None:
        self._weight = self.weigh(inputs, targets)
        with self.precision():
            loss = module(*self.to_device(inputs, targets))

        if self._weight:
            self._add_loss(loss.detach())
        share = self._weight * self.ranks.size / self._total_weight
        if share != 1:
            loss = loss * share
        if self.scaler is not None:
            loss = self.scaler.scale(loss)

        loss.backward()

    def _add_loss(self, loss: Tensor) -> None:
        """Add the current micro-batch's mean loss to the training loss."""
        if self._local_loss is self._zero:
            self._local_loss = loss
        else:
            self._local_loss = self._local_loss + loss

        self.loss.add(loss, self._weight)

    def weigh(self, inputs: Any, targets: Any) -> float:
        """Return the weight of a micro-batch's mean loss, from the batch in host memory."""
        targets = inputs if targets is None else targets
        if self.task.weight is None:
            return trees.sample_count(targets)

        return float(self.task.weight(targets))

    def precision(self) -> AbstractContextManager[Any]:
        """Return the context for forward passes: autocast with `--amp`."""
        if self.amp == "no":
            return nullcontext()
        return torch.autocast(self.device.type, dtype=DTYPES[self.amp])

    def to_device(self, inputs: Any, targets: Any) -> tuple[Any, Any]:
        """Return the tensors to compute with, on the device, as the task prepares them.

        Images are channels-last. Without targets they are the inputs: the batch is not a pair.
        """
        on_device = trees.to_device(inputs, self.device, self._image_format)
        if self.task.on_device is not None:
            on_device = self.task.on_device(on_device)
        if targets is None:
            return on_device, on_device

        return on_device, trees.to_device(targets, self.device)

    def _update(self, step: int) -> None:
        """Update the weights, whatever the loss is: a bad step ends training soon after."""
        if self.scaler is None:
            self.finite_watch.note_step(step + 1, self._local_loss, self._clip())
            self.optimizer.step()
            return

        self.scaler.unscale_(self.optimizer)
        norm = self._clip()
        if norm is None:
            norm = optimizers.gradient_norm(self.trained)
        # The scaler skips a step whose gradients overflow and lowers its scale. Such a step is not
        # bad, unless the scale is at its minimum.
        scale = self.scaler.scale(torch.ones((), device=self.device))
        noted = torch.where(scale <= finite.MIN_LOSS_SCALE, norm, 0.0)
        self.finite_watch.note_step(step + 1, self._local_loss, noted)
        self.scaler.step(self.optimizer)
        self.scaler.update()

    def _clip(self) -> Tensor | None:
        """Scale the gradients down to `--clip-norm`; return their norm before, None without it."""
        if self.options.clip_norm is None:
            return None

        self.clipped_norm = torch.nn.utils.clip_grad_norm_(
            self.trained, self.options.clip_norm, foreach=True
        )
        return self.clipped_norm


def lr_factor(
    step: int, steps: int, kind: str = "cosine", warm_up: float = 0.1, floor: float = 0.0
) -> float:
    """Return the learning rate at a step (from 0), as a fraction of the peak.

    It rises linearly, then decays. `kind`: cosine, to `floor` at the last step, or constant.
    `warm_up`: its fraction of all steps, 0 to 1.
    """
    if warm_up:
        rise = max(1, int(warm_up * steps))
    else:
        rise = 0

    if step < rise:
        return (step + 1) / rise
    if kind == "constant":
        return 1.0

    passed = (step - rise) / max(1, steps - rise)

    return floor + (1 - floor) * 0.5 * (1 + math.cos(math.pi * passed))
