"""The training loop: the same for every task and every strategy."""

from __future__ import annotations

import math
import os
import signal
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

import state
from arguments import Options, Refused
from batches import Batches, evaluation_draws
from checkpoint import Checkpoints
from cloudtrain_job import emit, log_metrics
from measure import LossMean, Meter
from strategies import Strategy
from tasks import Task

WARM_UP_SHARE = 0.1


class Stop:
    """Whether SIGTERM came. A second one ends the process: the collective it waits in may never return."""

    def __init__(self) -> None:
        self.asked = False

    def listen(self) -> None:
        signal.signal(signal.SIGTERM, self._on_signal)

    def _on_signal(self, *_: object) -> None:
        if self.asked:
            os._exit(143)
        self.asked = True


class Position(NamedTuple):
    """How far training has come."""

    step: int = 0
    epoch: int = 0
    samples: int = 0
    """Of this epoch, over all ranks. When it is all of them, only the evaluation is still to do."""


class Loop:
    """Trains one task under one strategy, from the newest checkpoint or from the beginning."""

    def __init__(self, task: Task, strategy: Strategy, options: Options, checkpoints: Checkpoints, stop: Stop) -> None:
        self.task, self.strategy, self.options = task, strategy, options
        self.checkpoints, self.stop = checkpoints, stop
        self.ranks, self.device = strategy.ranks, strategy.ranks.device
        self.batches = Batches(
            data=task.train,
            seed=options.seed,
            batch_size=options.batch_size or task.batch_size,
            parts=options.accumulate,
            rank=strategy.data_rank,
            ranks=strategy.data_ranks,
            workers=task.workers,
            pin_memory=self.device.type == "cuda",
        )
        self.epochs = options.epochs or task.epochs
        steps = self.epochs * self.batches.samples_per_epoch // self.batches.batch_size
        self.steps = min(steps, options.max_steps or steps)
        self.lr = options.lr or task.lr

        state.seed_generators(options.seed)  # the same weights on all ranks
        self.model = task.model().to(self.device)
        if self.device.type == "cuda":
            self.model = self.model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.wrapped = strategy.wrap(self.model)
        self.optimizer = torch.optim.AdamW(
            self.model.parameters(),
            lr=self.lr,
            weight_decay=task.weight_decay if options.weight_decay is None else options.weight_decay,
            fused=self.device.type == "cuda",
        )
        self._seed_this_rank()
        self.at, self.loss, self.meter = Position(), LossMean(self.device), Meter()
        self.metrics: dict[str, float] = {}
        self._saved_step, self._saved_at = -1, time.monotonic()

    def run(self) -> str:
        """Train to the end, or until SIGTERM: "succeeded" or "stopped"."""
        while not (self.at.samples == 0 and self._target_is_reached()):  # a resume may find all done
            if not self._train_epoch() or not self._finish_epoch():
                self.save()
                return "stopped"
            if self.at.step >= self.steps:
                break
        self.save()
        return "succeeded"

    def _target_is_reached(self) -> bool:
        return self.metrics.get("val_accuracy", 0.0) >= (self.options.target_accuracy or math.inf)

    def _train_epoch(self) -> bool:
        """The rest of this epoch; False when a stop was asked for."""
        self.wrapped.train()
        batch_size = self.batches.batch_size
        batches = self.batches.load(self.at.epoch, skip=self.at.samples)
        while self.at.samples < self.batches.samples_per_epoch and self.at.step < self.steps:
            learn = self.ranks.agree(self.stop.asked, self.ranks.rank == 0 and self._save_is_due())
            loss = self._step(batches)
            self.at = Position(self.at.step + 1, self.at.epoch, self.at.samples + batch_size)
            self.meter.count(batch_size)
            if self.ranks.rank == 0 and (self.meter.due() or self.at.step == self.steps):
                self._report(float(loss))
            stop, save = learn()
            if stop:
                return False
            if save:
                self.save()
        return True

    def _step(self, batches: Iterator[tuple[Tensor, Tensor]]) -> Tensor:
        """One optimizer step on the mean loss over the global batch; returns this rank's last loss."""
        for _ in range(self.options.accumulate - 1):
            with self.strategy.accumulating(self.wrapped):
                self._backward(*next(batches))
        loss = self._backward(*next(batches))
        for group in self.optimizer.param_groups:
            group["lr"] = self.lr * lr_factor(self.at.step, self.steps)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return loss

    def _backward(self, inputs: Tensor, targets: Tensor) -> Tensor:
        inputs, targets = self._to_device(inputs, targets)
        with self._precision():
            loss = self.task.loss(self.wrapped(inputs), targets)
        # Gradients are averaged over ranks, and parts may differ in size by one: weigh each by its samples.
        weight = len(targets) * self.strategy.data_ranks / self.batches.batch_size
        (loss * weight).backward()  # type: ignore[no-untyped-call]
        self.loss.add(loss, len(targets))
        return loss.detach()

    def _finish_epoch(self) -> bool:
        """Evaluate, report and go on to the next epoch; False when a stop was asked for meanwhile."""
        whole, last = self.at.samples == self.batches.samples_per_epoch, self.at.step >= self.steps
        epoch = self.at.epoch + (1 if self.at.samples else 0)
        total, samples = self.ranks.sum(*self.loss.state())
        values = {"loss": total / samples} if samples else {}
        if epoch % self.options.eval_every == 0 or last:
            evaluation = self.evaluate()
            if evaluation is None:
                return False
            values.update(evaluation)
        log_metrics(step=self.at.step, epoch=epoch, **values)
        self.metrics.update(values)
        if whole:
            self.at, self.loss = Position(self.at.step, epoch, 0), LossMean(self.device)
        return True

    @torch.no_grad()
    def evaluate(self) -> dict[str, float] | None:
        """Loss and accuracy, every validation sample counted once; None when a stop was asked for."""
        data = self.task.validation
        self.strategy.sync_buffers(self.model)
        self.wrapped.eval()
        loss, correct = LossMean(self.device), torch.zeros((), dtype=torch.int64, device=self.device)
        for draw, count in evaluation_draws(len(data), self.strategy.data_rank, self.strategy.data_ranks):
            learn = self.ranks.agree(self.stop.asked)
            inputs, targets = self._to_device(*data[draw])
            with self._precision():
                outputs = self.model(inputs)
            if count:
                loss.add(self.task.loss(outputs, targets), count)
                correct += self.task.correct(outputs, targets)
            if learn()[0]:
                return None
        total, samples, right = self.ranks.sum(*loss.state(), float(correct))
        return {"val_loss": total / samples, "val_accuracy": right / samples}

    def save(self) -> None:
        """A checkpoint of this very step, unless there is one."""
        if self._saved_step == self.at.step:
            return
        own: dict[str, Any] = {
            "generators": state.generators(self.device),
            "buffers": state.buffers(self.model),
            "loss": self.loss.state(),
        }
        self.strategy.sync_buffers(self.model)  # shared.pt must not depend on who writes it
        shared = {
            "run": self._identity(),
            "at": tuple(self.at),
            "metrics": dict(self.metrics),
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
        }
        folder, seconds = self.checkpoints.save(self.at.step, self.at.epoch, shared, own)
        state.restore_buffers(self.model, own["buffers"])
        self._saved_step, self._saved_at = self.at.step, time.monotonic()
        if self.ranks.rank == 0:
            emit("checkpoint", step=self.at.step, path=str(folder), seconds=round(seconds, 4))

    def resume(self) -> None:
        """Go on from the newest whole checkpoint, if there is one."""
        found = self.checkpoints.newest()
        if found is None:
            return
        shared, own = self.checkpoints.load(found)
        if shared["run"] != self._identity():
            raise Refused(
                f"{found.folder} was written with {_flags(shared['run'])}, not {_flags(self._identity())}: "
                "use the same, or start anew: --no-resume here, cloudtrain rerun --fresh for a run"
            )
        self._rehearse()
        self.model.load_state_dict(shared["model"])
        self.optimizer.load_state_dict(shared["optimizer"])
        self.at, self.metrics = Position(*shared["at"]), dict(shared["metrics"])
        if own is None:
            self._seed_this_rank()
            self.ranks.say(
                f"resumed on {self.ranks.size} ranks what {found.ranks} wrote: weights and optimizer go on, "
                "the generators are seeded anew; the result is not bit-identical to an uninterrupted run's"
            )
        else:
            state.restore_buffers(self.model, own["buffers"])
            state.restore_generators(own["generators"], self.device)
            self.loss.restore(own["loss"])
        self._saved_step = self.at.step
        if self.ranks.rank == 0:
            emit("resumed", step=self.at.step, epoch=self.at.epoch)

    def _rehearse(self) -> None:
        """One backward pass whose gradients are thrown away, before the state is restored.

        After its first backward pass DDP sorts its buckets anew, and with them the order in which three or
        more ranks add their gradients: a resumed run must have that behind it, as the uninterrupted one has.
        """
        self.wrapped.train()
        self._backward(*next(self.batches.load(epoch=0, skip=0)))
        self.optimizer.zero_grad(set_to_none=True)

    def _identity(self) -> dict[str, Any]:
        """What must not change under a resume: the split, the order, and what a step is."""
        return {"task": self.options.task, "seed": self.options.seed, "batch_size": self.batches.batch_size}

    def _seed_this_rank(self) -> None:
        """Other noise on each rank, and other after a resume with another number of ranks."""
        state.seed_generators((self.options.seed + 1) * 1_000_003 + self.ranks.rank)

    def _save_is_due(self) -> bool:
        every = self.options.checkpoint_every_steps
        if every and (self.at.step + 1) % every == 0:
            return True
        return time.monotonic() - self._saved_at >= self.options.checkpoint_every

    def _report(self, loss: float) -> None:
        emit(
            "progress",
            epoch=self.at.epoch + 1,
            epochs=self.epochs,
            step=self.at.step,
            steps=self.steps,
            loss=round(loss, 6),
            samples_per_s=round(self.meter.rate(), 1),
        )

    def _to_device(self, inputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        return inputs.to(self.device, non_blocking=True), targets.to(self.device, non_blocking=True)

    def _precision(self) -> torch.autocast:
        return torch.autocast(self.device.type, dtype=torch.bfloat16, enabled=self.options.amp == "bf16")


def lr_factor(step: int, steps: int) -> float:
    """The learning rate at a step (from 0) as a share of the highest: a linear rise, then a cosine to zero.

    A function of the step alone, so that there is no scheduler state to save.
    """
    warm_up = max(1, int(WARM_UP_SHARE * steps))
    if step < warm_up:
        return (step + 1) / warm_up
    return 0.5 * (1 + math.cos(math.pi * (step - warm_up) / max(1, steps - warm_up)))


def _flags(identity: dict[str, Any]) -> str:
    return " ".join(f"--{key.replace('_', '-')} {value}" for key, value in identity.items())
