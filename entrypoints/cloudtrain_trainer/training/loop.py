"""The training loop, which is the same for every task and strategy."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, NamedTuple, NoReturn

from torch import Tensor

from cloudtrain_job import activity, emit_event, log_metrics
from cloudtrain_launcher.events import Resumed
from cloudtrain_trainer import finite, state
from cloudtrain_trainer.checkpoints.checkpointer import Checkpointer
from cloudtrain_trainer.checkpoints.store import CheckpointStore
from cloudtrain_trainer.data.batches import MAX_EVALUATION_BATCH, Batches, loader_processes
from cloudtrain_trainer.data.streams import Stream, StreamBatches
from cloudtrain_trainer.finite import NotFinite
from cloudtrain_trainer.options import Options
from cloudtrain_trainer.ranks import CollectiveFlags, available_cores
from cloudtrain_trainer.reporting.metrics import Meter, evaluate
from cloudtrain_trainer.reporting.profiling import StepProfiler
from cloudtrain_trainer.reporting.progress import ProgressReporter, schedule
from cloudtrain_trainer.reporting.trackers import Trackers
from cloudtrain_trainer.rules import Refused
from cloudtrain_trainer.sigterm import Stop
from cloudtrain_trainer.strategies import Strategy
from cloudtrain_trainer.tasks import Task
from cloudtrain_trainer.training.step import Step


class Position(NamedTuple):
    """Progress of training."""

    step: int = 0
    """Optimizer steps done."""
    epoch: int = 0
    """Epochs finished, including their evaluation."""
    samples: int = 0
    """Samples of the current epoch over all ranks; after all, only the evaluation remains."""


class Loop:
    """Trains one task under one strategy, from the newest checkpoint or from the start."""

    def __init__(
        self,
        task: Task,
        strategy: Strategy,
        options: Options,
        checkpoints: CheckpointStore,
        stop: Stop,
        trackers: Trackers | None = None,
    ) -> None:
        self.task = task
        self.strategy = strategy
        self.options = options
        self.stop = stop
        self.ranks = strategy.ranks
        self.device = strategy.ranks.device
        self.trackers = trackers

        if task.validation is None and (
            options.patience or options.target_accuracy or options.eval_only
        ):
            flags = (
                "--eval-only needs"
                if options.eval_only
                else "--patience and --target-accuracy need"
            )
            raise Refused(f"{flags} validation data, which this task does not have")

        batch_size = options.batch_size or task.batch_size
        self.workers = loader_processes(
            options.workers, task.workers, available_cores(), self.ranks.local_size
        )

        self.step = Step(task, strategy, options, batch_size)
        self._make_batches()

        self.epochs = options.epochs or task.epochs
        steps = self.epochs * self.batches.samples_per_epoch // batch_size
        self.steps = min(steps, options.max_steps or steps)
        self.seed_this_rank()

        self.position = Position()
        self.meter = Meter()
        self.flags = CollectiveFlags(self.ranks)
        self.metrics: dict[str, float] = {}
        self.checkpointer = Checkpointer(self, checkpoints)
        self.progress = ProgressReporter(self)
        self.profiler: StepProfiler | None = None

    def run(self) -> str:
        """Train to the end or until SIGTERM. Return "succeeded" or "stopped".

        Raise `NotFinite` after a bad step.
        """
        self.step.clock.restart()
        if self.ranks.rank == 0:
            emit_event(schedule(self))
        outcome = self._train()
        if self.step.clock.steps:  # a stop: what comes after the last step is apart
            self.progress.report_times()
        self.checkpointer.save(last=True)
        self.progress.report_times()
        return outcome

    def _train(self) -> str:
        while not self._is_finished():  # a resumed run may be finished already
            if not self._train_epoch() or not (self._is_finished() or self._finish_epoch()):
                return "stopped"
            if self.position.step >= self.steps:
                break
        return "succeeded"

    def evaluate_only(self) -> str:
        """Report an evaluation of the current weights. Return "succeeded" or "stopped"."""
        with activity("evaluating"):
            values = self._values_of_evaluation()
        if values is None:
            return "stopped"
        self._log(self.position.epoch, values)
        self.metrics = values
        return "succeeded"

    def _is_finished(self) -> bool:
        """Return whether the last evaluation ends training, by its accuracy or by patience."""
        if self.position.samples and self.checkpointer.best.evaluated_at != self.position.step:
            return False
        reached = self.metrics.get("val_accuracy", 0.0) >= (
            self.options.target_accuracy or math.inf
        )
        return reached or self.checkpointer.best.evaluations_since >= (
            self.options.patience or math.inf
        )

    def _train_epoch(self) -> bool:
        """Train to the end of this epoch; return False if a stop was requested.

        An evaluation may end training earlier.
        """
        self.step.wrapped.train()
        batch_size = self.batches.batch_size
        with self.step.clock.during("data"):
            batches = self.batches.load(self.position.epoch, skip=self.position.samples)

        while (
            self.position.samples < self.batches.samples_per_epoch
            and self.position.step < self.steps
        ):
            if self._is_evaluation_due():
                if not self._evaluate_and_report(self.position.epoch + 1):
                    return False
                if self._is_finished():
                    return True
                self.step.wrapped.train()

            wait = self.flags.start(self.position.step, self._local_flags)
            if self.profiler is not None:
                self.profiler.before_step(self.position.step + 1)
            self.step.train_step(batches, self.position.step, self.steps)

            self.ranks.begin_training(self.options.timeout)
            self.position = Position(
                self.position.step + 1, self.position.epoch, self.position.samples + batch_size
            )
            self.meter.count(batch_size)
            if self.profiler is not None:
                with self.meter.pause():
                    self.profiler.after_step(self.position.step)
            self.stop.step_done()
            with self.step.clock.during("communication"):
                stop, save, report, not_finite, times = (
                    wait() if wait else (False, False, False, False, False)
                )

            if not_finite:
                self.raise_not_finite()
            if report or self.position.step == self.steps:
                self.progress.report()
            if times or self.position.step == self.steps:
                self.progress.report_times()
            if stop:
                return False
            if save or self.checkpointer.is_due_at(self.position.step):
                self.checkpointer.save()
        return True

    def _local_flags(self) -> tuple[bool, bool, bool, bool, bool]:
        """Return this rank's requests: stop, save, report, raise `NotFinite`, report times.

        Only rank 0 requests saves and reports.
        """
        first = self.ranks.rank == 0
        return (
            self.stop.requested,
            first and self.checkpointer.is_due(),
            first and self.meter.due(),
            self.step.finite_watch.poll(),
            first and self.step.clock.due(),
        )

    def check_finite(self, tensors: Iterable[Tensor] = ()) -> None:
        """Raise `NotFinite` on all ranks after a bad step or if a tensor is not finite."""
        must_stop = self.step.finite_watch.must_stop()
        if self.ranks.all_reduce_max(must_stop or not finite.all_finite(tensors))()[0]:
            self.raise_not_finite()

    def raise_not_finite(self) -> NoReturn:
        """Raise `NotFinite` with the first bad step of any rank. Called by all ranks."""
        records = self.ranks.all_gather(self.step.finite_watch.read_record())
        if any(record[3] for record in records):
            why = finite.reason(records, self.step.skips_bad_steps)
        else:
            why = f"step {self.position.step}: the weights are not finite"
        raise NotFinite(why)

    def _is_evaluation_due(self) -> bool:
        """Return whether `--eval-every-steps` asks for an evaluation that is not done."""
        every = self.options.eval_every_steps
        step = self.position.step
        is_due_within_epoch = every is not None and self.position.samples > 0 and step % every == 0
        return (
            is_due_within_epoch
            and self.task.validation is not None
            and self.checkpointer.best.evaluated_at != step
        )

    def _finish_epoch(self) -> bool:
        """Evaluate, report, and begin the next epoch; return False at a stop."""
        complete = self.position.samples == self.batches.samples_per_epoch
        last = self.position.step >= self.steps
        epoch = self.position.epoch + (1 if self.position.samples else 0)
        if not self._evaluate_and_report(
            epoch, evaluate=epoch % self.options.eval_every == 0 or last
        ):
            return False
        if complete:
            self.position, self.step.loss = (
                Position(self.position.step, epoch, 0),
                self.step.new_loss_mean(),
            )
            self.progress.restart()
        return True

    def _evaluate_and_report(self, epoch: int, evaluate: bool = True) -> bool:
        """Report the mean loss of the epoch, and an evaluation; return False at a stop.

        `epoch`: the epoch to report, from 1.
        """
        self.check_finite()
        total, samples = self.ranks.all_reduce_sum(*self.step.loss.state())
        values = {"loss": total / samples} if samples else {}
        skipped_steps = self.progress.report_skipped()
        if skipped_steps:
            values["skipped_steps"] = skipped_steps
        if evaluate and self.task.validation is not None:
            with self.meter.pause(), activity("evaluating"), self.step.clock.during("evaluation"):
                evaluation = self._evaluate()
            if evaluation is None:
                return False
            values.update(evaluation)
        self._log(epoch, values)
        self.metrics.update(values)
        return True

    def _log(self, epoch: int, values: dict[str, float]) -> None:
        log_metrics(step=self.position.step, epoch=epoch, **values)
        if self.trackers is not None:
            self.trackers.log(self.position.step, values)

    def _evaluate(self) -> dict[str, float] | None:
        """Return an evaluation, whose weights are kept if they are the best; None at a stop."""
        values = self._values_of_evaluation()
        if values is None:
            return None
        # The value is the same on all ranks.
        if not self.step.skips_bad_steps and not math.isfinite(values["val_loss"]):
            raise NotFinite(
                f"the evaluation after step {self.position.step}: val_loss is"
                f" {values['val_loss']:g}"
            )
        if self.options.target_accuracy is not None and "val_accuracy" not in values:
            raise Refused(
                "--target-accuracy needs a metric named accuracy, which this task does not have"
            )
        self.checkpointer.record_evaluation(values["val_loss"])
        return values

    def _values_of_evaluation(self) -> dict[str, float] | None:
        batch_size = min(
            MAX_EVALUATION_BATCH, max(1, self.micro_batch // self.strategy.n_microbatches)
        )
        return evaluate(self.step, batch_size, self.workers, self._stop_in_evaluation)

    def _stop_in_evaluation(self) -> bool:
        self.stop.step_done()
        return self.stop.requested

    def resume(self) -> None:
        """Resume from the newest complete checkpoint, if there is one.

        With `--eval-only` load its weights alone, unless `--weights` names others. Raise `Refused`
        if its options do not match.
        """
        if self.options.eval_only:
            self.checkpointer.load_weights()
            return
        self.checkpointer.resume()
        self.progress.restart()
        if self.position.step and self.ranks.rank == 0:
            emit_event(Resumed(step=self.position.step, epoch=self.position.epoch))

    @property
    def micro_batch(self) -> int:
        """Samples of the largest micro-batch, per rank and accumulation step."""
        return math.ceil(
            self.batches.batch_size / (self.strategy.data_ranks * self.step.accumulation_steps)
        )

    def split_to_fit(self, micro_batch: int) -> None:
        """Increase the accumulation steps until micro-batches have at most this many samples.

        The batch stays the same. Raise `Refused` if it cannot be split into such small parts.
        """
        samples = self.batches.batch_size / self.strategy.data_ranks
        n_microbatches = self.strategy.n_microbatches
        for count in range(self.step.accumulation_steps + 1, int(samples) + 1):
            divides = n_microbatches == 1 or samples % (count * n_microbatches) == 0
            if math.ceil(samples / count) <= micro_batch and divides:
                self.step.accumulation_steps = count
                self._make_batches()
                return
        raise Refused(
            f"micro-batches of {self.micro_batch} samples per rank do not fit into memory, and a"
            f" batch of {self.batches.batch_size} cannot be split further here:"
            f" {self.strategy.oom_hint}"
        )

    def run_discarded_step(self) -> None:
        """Run one forward and backward pass without effect, before a checkpoint is loaded.

        DDP reorders its buckets after its first backward pass, and so the order of the sums of
        gradients on three or more ranks. A resumed run must be past that point, as the
        uninterrupted one was.
        """
        self.step.wrapped.train()
        self.step.forward_backward(*next(self.batches.load(epoch=0, skip=0)))
        self.step.optimizer.zero_grad(set_to_none=True)

    def seed_this_rank(self) -> None:
        """Seed the random generators, differently on ranks with other data.

        Noise such as dropout then differs.
        """
        state.seed_generators(
            (self.options.seed + 1) * 1_000_003 + self.strategy.data_rank, self.strategy.devices
        )

    def _make_batches(self) -> None:
        arguments: dict[str, Any] = {
            "data": self.task.train,
            "seed": self.options.seed,
            "batch_size": self.step.batch_size,
            "accumulation_steps": self.step.accumulation_steps,
            "rank": self.strategy.data_rank,
            "ranks": self.strategy.data_ranks,
            "workers": self.workers,
            "pin_memory": self.device.type == "cuda",
        }
        self.batches: Batches | StreamBatches
        if isinstance(self.task.train, Stream):
            max_steps = 1 if self.options.eval_only else self.options.max_steps
            self.batches = StreamBatches(**arguments, max_steps=max_steps)
        else:
            self.batches = Batches(**arguments)
        count = self.step.accumulation_steps * self.strategy.n_microbatches
        if self.strategy.n_microbatches > 1 and self.batches.batch_size % (
            self.strategy.data_ranks * count
        ):
            raise Refused(
                f"a batch of {self.batches.batch_size} cannot be split into"
                f" {self.strategy.data_ranks} pipelines x {count} micro-batches of equal size: use"
                " another --batch-size or --microbatches"
            )
