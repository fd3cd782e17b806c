"""One optimizer step: passes over its micro-batches, gradient clipping, the update.

A step is bad if its loss or a gradient is NaN or infinite (finite.py); it is recorded, or skipped
(`--on-nan skip`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from cloudtrain_trainer import finite, hardware, rules, state, strategies, trees
from cloudtrain_trainer.finite import FiniteWatch
from cloudtrain_trainer.models.recompute import recompute
from cloudtrain_trainer.options import Options
from cloudtrain_trainer.reporting.metrics import LossMean
from cloudtrain_trainer.reporting.step_times import step_clock
from cloudtrain_trainer.strategies import Strategy
from cloudtrain_trainer.tasks import Task
from cloudtrain_trainer.training import optimizers
from cloudtrain_trainer.training.gradients import Gradients
from cloudtrain_trainer.training.initial_model import InitialModel

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}
FUSED_ON: tuple[str, ...] = ("cuda",)
"""Device types with channels-last images and fused optimizers."""


class Step:
    """This rank's part of the model, its optimizer, and how one step changes them."""

    def __init__(self, task: Task, strategy: Strategy, options: Options, batch_size: int) -> None:
        self.task = task
        self.strategy = strategy
        self.options = options
        self.batch_size = batch_size
        self.device = strategy.ranks.device
        self.amp = hardware.resolve_precision(options.amp, self.device)
        self.lr = options.lr or task.lr
        self.accumulation_steps = options.accumulate if strategy.n_microbatches == 1 else 1
        """Passes per rank and step. A pipeline makes its own micro-batches."""

        self.skips_bad_steps = options.on_nan == "skip"
        self._asynchronous = fused = self.computes_like_gpu()
        self.finite_watch = FiniteWatch(self.device, self.skips_bad_steps, self._asynchronous)
        self.loss = self.new_loss_mean()
        self._zero = self._local_loss = torch.zeros((), device=self.device)
        """This rank's sum of losses of the step: finite only if all of them are."""
        self.clipped_norm: Tensor | None = None
        """The latest norm of gradients before `--clip-norm`, shape (); None without it."""

        self._initial = self.initial_model()
        model = self._initial.model
        self._image_format: dict[str, Any] = {}
        if task.channels_last and fused:
            self._image_format = {"memory_format": torch.channels_last}
            if not strategy.shards_parameters:  # cuDNN follows the inputs' format as well
                model = self.channels_last(model)

        possible = rules.can_compile(options) and task.compiles
        self.compiles = hardware.resolve_compile(options.compile, self.device, possible)
        if task.channels_last and self.device.type == "cuda":  # all images have one size
            torch.backends.cudnn.benchmark = not torch.are_deterministic_algorithms_enabled()

        if options.recompute != "none":
            recompute(strategies.layers_of(model, self), options.recompute)

        self.model, self.wrapped = strategy.wrap(model, self)
        del model, self._initial  # in a pipeline only this rank's stage is kept

        self._make_optimizer()
        self.clock = step_clock(self)
        """Clock of this rank's phases."""
        self.scaler = torch.amp.GradScaler(self.device.type) if self.amp == "fp16" else None

    def computes_like_gpu(self) -> bool:
        """Return True for a device behind the host, with fused optimizers.

        Images are then channels-last.
        """
        return self.device.type in FUSED_ON

    def channels_last(self, model: nn.Module) -> nn.Module:
        """Return the model with the weights of its convolutions in the images' format."""
        converted: nn.Module = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        return converted

    def initial_model(self) -> InitialModel:
        """Return the model before it is distributed."""
        strategy = self.strategy
        return InitialModel(
            self.task.model, self.options, strategy.ranks, strategy.shard_group_size > 1
        )

    def _make_optimizer(self) -> None:
        task = self.task
        options = self.options
        trained: dict[str, Tensor] = {
            name: p for name, p in self.model.named_parameters() if p.requires_grad
        }
        self.gradients = Gradients(list(trained.values()), self.strategy)
        self.weight_decay = decay = (
            task.weight_decay if options.weight_decay is None else options.weight_decay
        )
        fused = self.computes_like_gpu()
        self.optimizer = optimizers.build(options.optimizer, trained, self.lr, decay, fused=fused)
        self.group_numbers = optimizers.GroupNumbers(self.optimizer)

    def place(self, module: nn.Module, device: torch.device | None = None) -> None:
        """Move the model, or a stage of it, to the device, in place, while the strategy wraps it.

        Tensors that are sharded by then are made there: only this rank's shards.
        """
        self._initial.place(module, device or self.device)

    def new_loss_mean(self) -> LossMean:
        """Return an empty mean of the training loss, for a new epoch."""
        return LossMean(self.device, finite=self.skips_bad_steps)

    def train_step(self, batches: Iterator[tuple[Any, Any]], step: int, steps: int) -> None:
        """Train on the next micro-batches: one step with the gradient of the global mean loss.

        `batches`: this rank's (inputs, targets) per micro-batch. `step`, of `steps` in the run,
        counts from 0.
        """
        self.clock.begin_step()
        before = self._buffers() if self.skips_bad_steps else {}
        self._local_loss = self._zero
        for _ in range(self.accumulation_steps - 1):
            with self.strategy.accumulation_context(self.wrapped):
                self._train_on_next(batches)
        self._train_on_next(batches)
        self.clock.enter("communication")
        self.strategy.finish_gradients(self.model)
        self.clock.enter("optimizer")
        self.group_numbers.scale_rates(
            lr_factor(step, steps, self.options.lr_schedule, self.options.warm_up)
        )

        if self.skips_bad_steps or self.scaler is not None:
            bad = self._update_if_finite(step) if self.scaler is None else self._update_scaled(step)
            if self.skips_bad_steps:
                state.restore_buffers_where(bad, self.model, before, self._statistics())
        else:
            self._update(step)

        self.optimizer.zero_grad(set_to_none=True)
        self.clock.end_step()

    def _train_on_next(self, batches: Iterator[tuple[Any, Any]]) -> None:
        """Wait for the next micro-batch, and add its gradients."""
        self.clock.enter("data")
        batch = next(batches)
        self.clock.enter("compute")
        self.clock.waiting.begin()
        self.forward_backward(*batch)
        self.clock.waiting.end()

    def _update(self, step: int) -> None:
        """Update the weights, whatever the loss is: a bad step ends training soon after."""
        norm = self._clip()
        if self._asynchronous:
            self.finite_watch.note_step(step + 1, self._local_loss, norm)
        else:
            self.finite_watch.record_step(
                step + 1, self._local_loss, norm, self._is_bad(self._local_loss, norm)
            )
        self.optimizer.step()

    def _update_if_finite(self, step: int) -> Tensor:
        """Update the weights unless this step is bad; return True if so.

        The flag is a bool on the device, shape ().
        """
        norm = self._clip()
        bad = self._on_any_rank(self._is_bad(self._local_loss, norm))
        self.finite_watch.record_step(step + 1, self._local_loss, norm, bad)
        # Kernels of torch's fused optimizers read the flag themselves: the host does not wait.
        if getattr(self.optimizer, "_step_supports_amp_scaling", False):
            self.optimizer.found_inf = bad.float()  # type: ignore[attr-defined]
            self.optimizer.step()
        elif not bool(bad):
            self.optimizer.step()
        return bad

    def _update_scaled(self, step: int) -> Tensor:
        """Do the same in fp16: the scaler skips steps whose gradients overflow.

        It then lowers its scale. Such a step is not bad, unless the scale is at its minimum.
        """
        assert self.scaler is not None  # noqa: S101  (checked by the caller)
        bad = self._on_any_rank(self._is_bad(self._local_loss))
        gradients = self.gradients.by_sharding()
        if self.skips_bad_steps and gradients:  # the scaler only checks gradients: make one bad
            gradients[0][0].add_(torch.where(bad, torch.nan, 0.0))
        self.scaler.unscale_(self.optimizer)
        norm = self._clip()
        scale = self.scaler.scale(torch.ones((), device=self.device))
        bad = bad | (self._is_bad(norm) & (scale <= finite.MIN_LOSS_SCALE))
        self.finite_watch.record_step(step + 1, self._local_loss, norm, bad)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        return bad

    def _is_bad(self, *values: Tensor) -> Tensor:
        """Return a bool on the device: True if a value is not finite.

        On a CPU the host computes it, which is faster.
        """
        if self._asynchronous:
            return ~torch.isfinite(torch.stack(values)).all()
        return torch.tensor(not all(math.isfinite(float(value)) for value in values))

    def _on_any_rank(self, bad: Tensor) -> Tensor:
        """Return whether the step is bad: on any rank if all must skip it, else on this rank."""
        return self.strategy.ranks.any_on_device(bad) if self.skips_bad_steps else bad

    def forward_backward(self, inputs: Any, targets: Any) -> None:
        """Run the passes of one micro-batch: inputs (batch, ...), targets (batch, ...).

        They may be on any device.
        """
        self.strategy.forward_backward(self, *self.to_device(inputs, targets))

    def backward(self, loss: Tensor, samples: int) -> None:
        """Add a micro-batch's gradients. `loss`: its mean over `samples`, shape ()."""
        self.add_loss(loss, samples)
        weight = self.loss_weight(samples)
        if weight != 1:
            loss = loss * weight
        (loss if self.scaler is None else self.scaler.scale(loss)).backward()  # type: ignore[no-untyped-call]

    def add_loss(self, loss: Tensor, samples: int) -> None:
        """Add a micro-batch's mean loss to the training loss.

        Of ranks that see the same samples, only one does.
        """
        loss = loss.detach().to(self.device)
        self._local_loss = loss if self._local_loss is self._zero else self._local_loss + loss
        if self.strategy.reports_metrics:
            self.loss.add(loss, samples)

    def loss_weight(self, samples: int) -> float:
        """Return the weight of a mean loss over `samples` in the loss of the step.

        Gradients are averaged over the ranks that share the batch, and micro-batches may differ in
        size by one.
        """
        return samples * self.strategy.data_ranks / self.batch_size

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

    def _clip(self) -> Tensor:
        """Scale the gradients down to `--clip-norm`; return their norm before.

        It is the norm over all ranks; without `--clip-norm` over this rank's gradients, which
        needs no message.
        """
        if self.options.clip_norm is None:
            return self.gradients.local_norm()
        norm = self.clipped_norm = self.gradients.clip(self.options.clip_norm)
        return norm

    def _buffers(self) -> dict[str, Tensor]:
        """Return copies of tensors that forward passes change, such as batch norm's statistics.

        A bad number would stay in them.
        """
        return state.buffers(self.model, self._statistics())

    def _statistics(self) -> Sequence[Tensor]:
        return self.task.statistics(self.model)


def lr_factor(step: int, steps: int, kind: str = "cosine", warm_up: float = 0.1) -> float:
    """Return the learning rate at a step (from 0), as a fraction of the peak.

    It rises linearly, then decays. `kind`: cosine or linear decay, to zero at the last step; or
    constant. `warm_up`: its fraction of all steps, 0 to 1.
    """
    rise = max(1, int(warm_up * steps)) if warm_up else 0
    if step < rise:
        return (step + 1) / rise
    passed = (step - rise) / max(1, steps - rise)
    if kind == "cosine":
        return 0.5 * (1 + math.cos(math.pi * passed))
    return 1 - passed if kind == "linear" else 1.0
