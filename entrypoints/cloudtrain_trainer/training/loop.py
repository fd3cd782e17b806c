"""The training loop, which is the same for every task, alone and on many ranks."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any, NamedTuple

from cloudtrain_job import activity, emit_event, log_metrics
from cloudtrain_trainer.checkpoints.checkpointer import Checkpointer
from cloudtrain_trainer.checkpoints.store import CheckpointStore
from cloudtrain_trainer.data.batches import MAX_EVALUATION_BATCH
from cloudtrain_trainer.finite import NotFinite
from cloudtrain_trainer.options import Options
from cloudtrain_trainer.ranks import CollectiveFlags, Ranks
from cloudtrain_trainer.reporting.metrics import LossMean, Meter
from cloudtrain_trainer.reporting.progress import ProgressReporter, schedule
from cloudtrain_trainer.reporting.trackers import Trackers
from cloudtrain_trainer.rules import Refused
from cloudtrain_trainer.serving import ServingForm
from cloudtrain_trainer.sigterm import Stop
from cloudtrain_trainer.tasks import Task
from cloudtrain_trainer.training.evaluation import evaluate
from cloudtrain_trainer.training.run import Position, TrainingRun
from cloudtrain_wire.events import Resumed


class Flags(NamedTuple):
    """Requests of a rank, which all ranks follow after the same step.

    Only rank 0 requests saves and reports.
    """

    stop: bool = False
    save: bool = False
    report: bool = False
    not_finite: bool = False
    report_times: bool = False


class Loop(TrainingRun):
    """Trains one task, from the newest checkpoint or from the start."""

    def __init__(
        self,
        task: Task,
        ranks: Ranks,
        options: Options,
        checkpoints: CheckpointStore,
        stop: Stop,
        trackers: Trackers | None = None,
    ) -> None:
        if task.validation is None and (options.patience or options.eval_only):
            flag = "--eval-only" if options.eval_only else "--patience"
            raise Refused(f"{flag} needs validation data, which this task does not have")

        super().__init__(task, ranks, options, stop, trackers)
        self.flags = CollectiveFlags(self.ranks)
        self.checkpointer = Checkpointer(self, checkpoints)
        self.serving = ServingForm(task, mlflow=options.mlflow_model)
        self.progress = ProgressReporter(self)
        self.throughput = Meter()
        """Throughput between two reports of metrics, without evaluations."""

    def resume(self) -> None:
        """Resume from the newest complete checkpoint, if there is one.

        With `--eval-only` load its weights alone. Raise `Refused` if its options do not match.
        """
        if self.options.eval_only:
            self.checkpointer.load_weights()
            return

        self.checkpointer.resume()
        self.progress.restart()
        if self.position.step and self.ranks.rank == 0:
            emit_event(Resumed(step=self.position.step, epoch=self.position.epoch))

    def run(self) -> str:
        """Train to the end or until SIGTERM. Return "succeeded" or "stopped".

        Raise `NotFinite` after a bad step.
        """
        self.step.clock.start()
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
            if not self.train_epoch() or not (self._is_finished() or self._finish_epoch()):
                return "stopped"
            if self.position.step >= self.steps:
                break

        return "succeeded"

    def train_epoch(self) -> bool:
        """Train to the end of this epoch; return False if a stop was requested.

        An evaluation may end training earlier.
        """
        self.step.wrapped.train()
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
            self._train_step(batches)
            if not self._act_on_flags(wait):
                return False

        return True

    def _train_step(self, batches: Iterator[tuple[Any, Any]]) -> None:
        """Train on one batch, and count it."""
        number = self.position.step + 1
        self.step.train_step(batches, self.position.step, self.steps)
        self.ranks.begin_training(self.options.timeout)
        samples = self.position.samples + self.batches.batch_size
        self.position = Position(number, self.position.epoch, samples)
        self.meter.count(self.batches.batch_size)
        self.throughput.count(self.batches.batch_size)
        self.stop.step_done()

    def _act_on_flags(self, wait: Callable[[], list[bool]] | None) -> bool:
        """Do what a rank requested before this step; return False at a stop.

        `wait`: returns the flags of all ranks; None: they were not exchanged.
        """
        flags = Flags()
        if wait is not None:
            with self.step.clock.during("communication"):
                flags = Flags(*wait())

        is_last = self.position.step == self.steps
        if flags.not_finite:
            self.raise_not_finite()
        if flags.report or is_last:
            self.progress.report()
        if flags.report_times or is_last:
            self.progress.report_times()
        if flags.stop:
            return False
        if flags.save or self.checkpointer.is_due_at(self.position.step):
            self.checkpointer.save()

        return True

    def _local_flags(self) -> Flags:
        first = self.ranks.rank == 0
        return Flags(
            stop=self.stop.requested,
            save=first and self.checkpointer.is_due(),
            report=first and self.meter.due(),
            not_finite=self.step.finite_watch.poll(),
            report_times=first and self.step.clock.due(),
        )

    def _finish_epoch(self) -> bool:
        """Evaluate, report, and begin the next epoch; return False at a stop."""
        complete = self.position.samples == self.batches.samples_per_epoch
        last = self.position.step >= self.steps
        epoch = self.position.epoch + (1 if self.position.samples else 0)
        evaluate = epoch % self.options.eval_every == 0 or last
        if not self._evaluate_and_report(epoch, evaluate=evaluate):
            return False

        if complete:
            self.position = Position(self.position.step, epoch, 0)
            self.step.loss = LossMean()
            self.progress.restart()

        return True

    def _is_finished(self) -> bool:
        """Return whether the last evaluation ends training, by patience."""
        best = self.checkpointer.best
        if self.position.samples and best.evaluated_at != self.position.step:
            return False

        return best.evaluations_since >= (self.options.patience or math.inf)

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

    def evaluate_only(self) -> str:
        """Report an evaluation of the current weights. Return "succeeded" or "stopped"."""
        with activity("evaluating"):
            values = self._evaluate()
        if values is None:
            return "stopped"

        self._log(self.position.epoch, values)
        self.metrics = values

        return "succeeded"

    def _evaluate_and_report(self, epoch: int, evaluate: bool = True) -> bool:
        """Report the mean loss of the epoch, and an evaluation; return False at a stop.

        `epoch`: the epoch to report, from 1.
        """
        self.check_finite()
        total, samples = self.ranks.all_reduce_sum(*self.step.loss.state())
        values = {}
        if samples:
            values["loss"] = total / samples

        rate = round(self.throughput.rate(), 1)

        if evaluate and self.task.validation is not None:
            with self.meter.pause(), activity("evaluating"), self.step.clock.during("evaluation"):
                evaluation = self._evaluate()
                if evaluation is None:
                    return False
                self._record(evaluation["val_loss"])

            self.throughput.rate()  # the next one begins after the evaluation
            values.update(evaluation)

        self.metrics.update(values)
        if rate:  # else no step since a resume
            values["samples_per_s"] = rate

        self._log(epoch, values)

        return True

    def _record(self, val_loss: float) -> None:
        """Keep the weights if they are the best. Raise `NotFinite` on all ranks."""
        if not math.isfinite(val_loss):
            step = self.position.step
            raise NotFinite(f"the evaluation after step {step}: val_loss is {val_loss:g}")

        self.checkpointer.record_evaluation(val_loss)

    def _evaluate(self) -> dict[str, float] | None:
        """Return an evaluation; None at a stop."""
        batch_size = min(MAX_EVALUATION_BATCH, self.micro_batch)
        averages = self.step.averages
        with averages.in_model() if averages is not None else nullcontext():
            return evaluate(self.step, batch_size, self.workers, self._stop_in_evaluation)

    def _stop_in_evaluation(self) -> bool:
        self.stop.step_done()
        return self.stop.requested

    def _log(self, epoch: int, values: dict[str, float]) -> None:
        log_metrics(step=self.position.step, epoch=epoch, **values)
        if self.trackers is not None:
            self.trackers.log(self.position.step, values)
