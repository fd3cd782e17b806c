"""Events of a training: its schedule at the start, then progress and times since the last report."""

from __future__ import annotations

import math
from collections.abc import Sequence

from cloudtrain_job import emit_event
from cloudtrain_trainer import hardware
from cloudtrain_trainer.data.streams import Stream
from cloudtrain_trainer.training.run import TrainingRun
from cloudtrain_wire.events import Progress, Schedule


class ProgressReporter:
    """Sends the progress events of a training run. All ranks call each method together."""

    def __init__(self, run: TrainingRun) -> None:
        self.run = run
        self._loss = run.step.loss.state()

    def restart(self) -> None:
        """Restart the loss after a resume or in a new epoch. Waits for the device."""
        self._loss = self.run.step.loss.state()

    def report(self) -> None:
        """Send an event from rank 0, to the trackers as well."""
        run = self.run
        total, samples = run.step.loss.state()
        mine = (
            total - self._loss[0],
            samples - self._loss[1],
            hardware.peak_memory(run.devices),
        )
        self._loss = total, samples
        by_rank = run.ranks.all_gather(mine)
        rate = run.meter.rate()
        if run.ranks.rank != 0:
            return

        values = self._values(by_rank, rate)
        position = run.position
        progress = Progress(
            epoch=position.epoch + 1, epochs=run.epochs, step=position.step, steps=run.steps
        )
        emit_event(progress.replace(unit=run.task.unit, **values))

        if run.trackers is not None:
            run.trackers.log(
                position.step, {f"train/{name}": value for name, value in values.items()}
            )

    def report_times(self) -> None:
        """Send this rank's time by phase since the last such event."""
        run = self.run
        emit_event(run.step.clock.event(run.position.step, run.batches.batch_size))

    def _values(self, by_rank: Sequence[tuple[float, int, int]], rate: float) -> dict[str, float]:
        """Return the fields of the event.

        `by_rank`: (sum of losses, samples, peak memory in bytes). `rate`: samples per second.
        """
        task = self.run.task
        device = self.run.device
        losses, counts, memory = zip(*by_rank, strict=True)
        values: dict[str, float] = {}
        if sum(counts):
            values["loss"] = round(sum(losses) / sum(counts), 6)

        values["samples_per_s"] = round(rate, 1)
        values["seconds_per_step"] = round(self.run.batches.batch_size / rate, 6)
        values["peak_memory_gb"] = round(max(memory) / 1e9, 3)
        values["lr"] = float(f"{self.run.step.optimizer.param_groups[0]['lr']:.6g}")
        if self.run.step.clipped_norm is not None:
            values["gradient_norm"] = round(float(self.run.step.clipped_norm), 6)
        if task.tokens:
            values["tokens_per_s"] = round(rate * task.tokens, 1)

        peak = hardware.peak_flops(hardware.device_name(device), self.run.step.amp)
        if peak and task.flops:
            devices = self.run.ranks.size * len(self.run.devices)
            values["mfu"] = round(rate * task.flops / (peak * devices), 4)

        return values


def schedule(run: TrainingRun) -> Schedule:
    """Return the event, as if no `--patience` ended the run earlier."""
    options = run.options
    data = run.task.validation
    batch = run.batches.batch_size
    event = Schedule(step_samples=batch, evaluations=0 if data is None else _evaluations(run))
    if data is not None and not isinstance(data, Stream):
        event = event.replace(evaluation_samples=len(data))
    if options.checkpoint_every_steps is not None:
        event = event.replace(checkpoint_steps=options.checkpoint_every_steps)

    return event.replace(checkpoint_seconds=float(options.checkpoint_every))


def _evaluations(run: TrainingRun) -> int:
    """Return the evaluations of a run: at ends of epochs, every N steps, and at the end."""
    last = run.steps
    epoch = max(1, run.batches.samples_per_epoch // run.batches.batch_size)
    ends = epoch * run.options.eval_every
    every = run.options.eval_every_steps
    count = 1 + _multiples(ends, last)

    if every is None:
        return count

    return count + _multiples(every, last) - _multiples(math.lcm(ends, every), last)


def _multiples(number: int, below: int) -> int:
    """Return how many multiples of a number there are from 1."""
    return max(0, below - 1) // number
