"""The training loop: the same for every task and every strategy."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple, NoReturn

from torch import Tensor

from cloudtrain_job import log_metrics, tell
from cloudtrain_launcher.events import Progress, Resumed
from cloudtrain_trainer import finite, hardware, state
from cloudtrain_trainer.batches import EVALUATION_BATCH, Batches, loader_processes
from cloudtrain_trainer.checkpoint import Checkpoints
from cloudtrain_trainer.checkpointer import Saving
from cloudtrain_trainer.finite import NotFinite
from cloudtrain_trainer.metrics import Meter, evaluate
from cloudtrain_trainer.options import Options
from cloudtrain_trainer.ranks import Agreement, cores
from cloudtrain_trainer.rules import Refused
from cloudtrain_trainer.sigterm import Stop
from cloudtrain_trainer.step import Step
from cloudtrain_trainer.strategies import Strategy
from cloudtrain_trainer.tasks import Task
from cloudtrain_trainer.trackers import Trackers


class Position(NamedTuple):
    """How far training has come."""

    step: int = 0
    epoch: int = 0
    samples: int = 0
    """Of this epoch, over all ranks. When it is all of them, only the evaluation is still to do."""


class Loop:
    """Trains one task under one strategy, from the newest checkpoint or from the beginning."""

    def __init__(
        self,
        task: Task,
        strategy: Strategy,
        options: Options,
        checkpoints: Checkpoints,
        stop: Stop,
        trackers: Trackers | None = None,
    ) -> None:
        self.task, self.strategy, self.options, self.stop = task, strategy, options, stop
        self.ranks, self.device, self.trackers = strategy.ranks, strategy.ranks.device, trackers
        batch_size = options.batch_size or task.batch_size
        self.workers = loader_processes(options.workers, task.workers, cores(), self.ranks.local_size)
        self.step = Step(task, strategy, options, batch_size)
        self._make_batches()
        self.epochs = options.epochs or task.epochs
        steps = self.epochs * self.batches.samples_per_epoch // batch_size
        self.steps = min(steps, options.max_steps or steps)
        self.seed_this_rank()
        self.at, self.meter, self.agreement = Position(), Meter(), Agreement(self.ranks)
        self.metrics: dict[str, float] = {}
        self._skipped_told = 0
        self.saving = Saving(self, checkpoints)
        self._told = self.step.loss.state()

    def run(self) -> str:
        """Train to the end, or until SIGTERM: "succeeded" or "stopped"."""
        while not (self.at.samples == 0 and self._is_enough()):  # a resume may find all done
            if not self._train_epoch() or not self._finish_epoch():
                self.saving.save(last=True)
                return "stopped"
            if self.at.step >= self.steps:
                break
        self.saving.save(last=True)
        return "succeeded"

    def _is_enough(self) -> bool:
        """Whether the target is reached, or the loss has not fallen for too long."""
        reached = self.metrics.get("val_accuracy", 0.0) >= (self.options.target_accuracy or math.inf)
        return reached or self.saving.best.stale >= (self.options.patience or math.inf)

    def _train_epoch(self) -> bool:
        """The rest of this epoch; False when a stop was asked for."""
        self.step.wrapped.train()
        batch_size = self.batches.batch_size
        batches = self.batches.load(self.at.epoch, skip=self.at.samples)
        while self.at.samples < self.batches.samples_per_epoch and self.at.step < self.steps:
            learn = self.agreement.ask(self.at.step, self._wishes)
            self.step.take(batches, self.at.step, self.steps)
            self.at = Position(self.at.step + 1, self.at.epoch, self.at.samples + batch_size)
            self.meter.count(batch_size)
            self.stop.beat()
            stop, save, report, broken = learn() if learn else (False, False, False, False)
            if broken:
                self.give_up()
            if report or self.at.step == self.steps:
                self._report()
            if stop:
                return False
            if save or self.saving.is_due_after(self.at.step):
                self.saving.save()
        return True

    def _wishes(self) -> tuple[bool, bool, bool, bool]:
        """Whether this rank wants to stop, to save, to report, to give up: the middle two are up to the first."""
        first = self.ranks.rank == 0
        return self.stop.asked, first and self.saving.is_due(), first and self.meter.due(), self.step.watch.glance()

    def check_finite(self, tensors: Iterable[Tensor] = ()) -> None:
        """Raise `NotFinite` on all ranks if any of them must stop, or holds such tensors that are not finite."""
        over = self.step.watch.is_over()
        if self.ranks.agree(over or not finite.all_finite(tensors))()[0]:
            self.give_up()

    def give_up(self) -> NoReturn:
        """Raise `NotFinite`, by all ranks together: what was not finite first, and what to do."""
        records = self.ranks.gather(self.step.watch.record())
        if any(record[3] for record in records):
            why = finite.reason(records, self.step.skips)
        else:
            why = f"step {self.at.step}: the weights are not finite numbers"
        raise NotFinite(why)

    def _finish_epoch(self) -> bool:
        """Evaluate, report and go on to the next epoch; False when a stop was asked for meanwhile."""
        whole, last = self.at.samples == self.batches.samples_per_epoch, self.at.step >= self.steps
        epoch = self.at.epoch + (1 if self.at.samples else 0)
        self.check_finite()
        total, samples = self.ranks.sum(*self.step.loss.state())
        values = {"loss": total / samples} if samples else {}
        if self._tell_skipped():
            values["skipped_steps"] = self._skipped_told
        if epoch % self.options.eval_every == 0 or last:
            with self.meter.pause():
                evaluation = self._evaluate()
            if evaluation is None:
                return False
            values.update(evaluation)
        log_metrics(step=self.at.step, epoch=epoch, **values)
        if self.trackers is not None:
            self.trackers.log(self.at.step, values)
        self.metrics.update(values)
        if whole:
            self.at, self.step.loss = Position(self.at.step, epoch, 0), self.step.new_mean()
            self._told = self.step.loss.state()
        return True

    def _evaluate(self) -> dict[str, float] | None:
        """What an evaluation tells, and keep the weights if they are the best; None when a stop was asked for."""
        most = min(EVALUATION_BATCH, max(1, self.micro_batch // self.strategy.cuts))
        found = evaluate(self.step, most, self.workers, self._stop_in_evaluation)
        if found is None:
            return None
        if not self.step.skips and not math.isfinite(found["val_loss"]):  # all ranks have the same figures
            raise NotFinite(f"the evaluation after step {self.at.step}: val_loss is {found['val_loss']:g}")
        self.saving.judge(found["val_loss"])
        return found

    def _tell_skipped(self) -> bool:
        """Whether steps have been left out; a line about those that nobody has heard of."""
        if not self.step.skips:
            return False
        *record, count = self.step.watch.record()
        if count > self._skipped_told:
            self.ranks.say(f"{finite.told(record)}: left out (--on-nan skip), as {count:.0f} steps so far")
            self._skipped_told = int(count)
        return bool(count)

    def _stop_in_evaluation(self) -> bool:
        self.stop.beat()
        return self.stop.asked

    def resume(self) -> None:
        """Go on from the newest whole checkpoint, if there is one."""
        self.saving.resume()
        self._told = self.step.loss.state()
        if self.at.step and self.ranks.rank == 0:
            tell(Resumed(step=self.at.step, epoch=self.at.epoch))

    @property
    def micro_batch(self) -> int:
        """Samples per rank and part, at most."""
        return math.ceil(self.batches.batch_size / (self.strategy.data_ranks * self.step.parts))

    def cut_into(self, micro_batch: int) -> None:
        """Take at most so many samples per rank and part, in more parts; the batch stays what it is."""
        mine = self.batches.batch_size / self.strategy.data_ranks
        for parts in range(self.step.parts + 1, int(mine) + 1):
            cuts = parts * self.strategy.cuts
            if math.ceil(mine / parts) <= micro_batch and (self.strategy.cuts == 1 or mine % cuts == 0):
                self.step.parts = parts
                self._make_batches()
                return
        raise Refused(
            f"parts of {self.micro_batch} samples per rank do not fit into memory, and a batch of "
            f"{self.batches.batch_size} cannot be cut into smaller ones here: {self.strategy.more_room}"
        )

    def rehearse(self) -> None:
        """One forward and backward pass whose gradients are thrown away, before the state is restored.

        After its first backward pass DDP sorts its buckets anew, and with them the order in which three or
        more ranks add their gradients: a resumed run must have that behind it, as the uninterrupted one has.
        """
        self.step.wrapped.train()
        self.step.learn(*next(self.batches.load(epoch=0, skip=0)))
        self.step.optimizer.zero_grad(set_to_none=True)

    def seed_this_rank(self) -> None:
        """Other noise for each share of the batch, and other after a resume with another number of ranks."""
        state.seed_generators((self.options.seed + 1) * 1_000_003 + self.strategy.data_rank, self.strategy.devices)

    def _make_batches(self) -> None:
        self.batches = Batches(
            data=self.task.train,
            seed=self.options.seed,
            batch_size=self.step.batch_size,
            parts=self.step.parts,
            rank=self.strategy.data_rank,
            ranks=self.strategy.data_ranks,
            workers=self.workers,
            pin_memory=self.device.type == "cuda",
        )
        cuts = self.step.parts * self.strategy.cuts
        if self.strategy.cuts > 1 and self.batches.batch_size % (self.strategy.data_ranks * cuts):
            raise Refused(
                f"a batch of {self.batches.batch_size} cannot be cut into {self.strategy.data_ranks} pipelines x "
                f"{cuts} micro-batches of one size: use another --batch-size or --microbatches"
            )

    def _report(self) -> None:
        """Progress since the last report: the mean loss and the largest memory over all ranks."""
        total, samples = self.step.loss.state()
        mine = total - self._told[0], samples - self._told[1], hardware.peak_memory(self.strategy.devices)
        self._told = total, samples
        everyone = self.ranks.gather(mine)
        self._tell_skipped()
        rate = self.meter.rate()
        if self.ranks.rank != 0:
            return
        losses, counts, memory = zip(*everyone, strict=True)
        values = {
            **({"loss": round(sum(losses) / sum(counts), 6)} if sum(counts) else {}),
            "samples_per_s": round(rate, 1),
            "seconds_per_step": round(self.batches.batch_size / rate, 6),
            "peak_memory_gb": round(max(memory) / 1e9, 3),
        }
        if self.task.tokens:
            values["tokens_per_s"] = round(rate * self.task.tokens, 1)
        peak = hardware.peak_flops(hardware.device_name(self.device), self.step.amp)
        if peak and self.task.flops:
            devices = self.ranks.size * len(self.strategy.devices)
            values["mfu"] = round(rate * self.task.flops / (peak * devices), 4)
        progress = Progress(epoch=self.at.epoch + 1, epochs=self.epochs, step=self.at.step, steps=self.steps)
        tell(progress.but(unit=self.task.unit, **values))
        if self.trackers is not None:
            self.trackers.log(self.at.step, {f"train/{name}": value for name, value in values.items()})
