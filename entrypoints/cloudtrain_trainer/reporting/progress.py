"""Events of a loop: its schedule at the start, then progress and times since the last report."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from cloudtrain_job import emit_event
from cloudtrain_launcher.events import Progress, Schedule
from cloudtrain_trainer import finite, hardware
from cloudtrain_trainer.data.streams import Stream

if TYPE_CHECKING:
    from cloudtrain_trainer.training.loop import Loop


class ProgressReporter:
    """Sends the progress events of a training loop. All ranks call each method together."""

    def __init__(self, loop: Loop) -> None:
        self.loop = loop
        self._skipped = 0
        self._loss = loop.step.loss.state()

    def restart(self) -> None:
        """Restart the loss after a resume or in a new epoch. Waits for the device."""
        self._loss = self.loop.step.loss.state()

    def report(self) -> None:
        """Send an event from rank 0, to the trackers as well; log newly skipped steps."""
        loop = self.loop
        total, samples = loop.step.loss.state()
        mine = (
            total - self._loss[0],
            samples - self._loss[1],
            hardware.peak_memory(loop.strategy.devices),
        )
        self._loss = total, samples
        by_rank = loop.ranks.all_gather(mine)
        self.report_skipped()
        rate = loop.meter.rate()
        if loop.ranks.rank != 0:
            return
        values = self._values(by_rank, rate)
        position = loop.position
        progress = Progress(
            epoch=position.epoch + 1, epochs=loop.epochs, step=position.step, steps=loop.steps
        )
        emit_event(progress.replace(unit=loop.task.unit, **values))
        if loop.trackers is not None:
            loop.trackers.log(
                position.step, {f"train/{name}": value for name, value in values.items()}
            )

    def report_times(self) -> None:
        """Send this rank's time by phase since the last such event."""
        loop = self.loop
        emit_event(loop.step.clock.take(loop.position.step, loop.batches.batch_size))

    def report_skipped(self) -> int:
        """Log the steps skipped since the last call; return the count of all.

        0 without `--on-nan skip`; else waits for the device.
        """
        if not self.loop.step.skips_bad_steps:
            return 0
        *record, count = self.loop.step.finite_watch.read_record()
        if count > self._skipped:
            self.loop.ranks.log(
                f"{finite.describe(record)}: skipped (--on-nan skip), {count:.0f} steps so far"
            )
            self._skipped = int(count)
        return int(count)

    def _values(self, by_rank: Sequence[tuple[float, int, int]], rate: float) -> dict[str, float]:
        """Return the fields of the event.

        `by_rank`: (sum of losses, samples, peak memory in bytes). `rate`: samples per second.
        """
        task = self.loop.task
        device = self.loop.device
        losses, counts, memory = zip(*by_rank, strict=True)
        values = {
            **({"loss": round(sum(losses) / sum(counts), 6)} if sum(counts) else {}),
            "samples_per_s": round(rate, 1),
            "seconds_per_step": round(self.loop.batches.batch_size / rate, 6),
            "peak_memory_gb": round(max(memory) / 1e9, 3),
        }
        values["lr"] = float(f"{self.loop.step.optimizer.param_groups[0]['lr']:.6g}")
        if self.loop.step.clipped_norm is not None:
            values["gradient_norm"] = round(float(self.loop.step.clipped_norm), 6)
        if task.tokens:
            values["tokens_per_s"] = round(rate * task.tokens, 1)
        peak = hardware.peak_flops(hardware.device_name(device), self.loop.step.amp)
        if peak and task.flops:
            devices = self.loop.ranks.size * len(self.loop.strategy.devices)
            values["mfu"] = round(rate * task.flops / (peak * devices), 4)
        return values


def schedule(loop: Loop) -> Schedule:
    """Return the event, as if no `--patience` or `--target-accuracy` ended the run earlier."""
    options = loop.options
    data = loop.task.validation
    batch = loop.batches.batch_size
    event = Schedule(step_samples=batch, evaluations=0 if data is None else _evaluations(loop))
    if data is not None and not isinstance(data, Stream):
        event = event.replace(evaluation_samples=len(data))
    if options.checkpoint_every_steps is not None:
        event = event.replace(checkpoint_steps=options.checkpoint_every_steps)
    return event.replace(checkpoint_seconds=float(options.checkpoint_every))


def _evaluations(loop: Loop) -> int:
    """Return the evaluations of a run: at ends of epochs, every N steps, and at the end."""
    last = loop.steps
    epoch = max(1, loop.batches.samples_per_epoch // loop.batches.batch_size)
    ends = epoch * loop.options.eval_every
    every = loop.options.eval_every_steps
    count = 1 + _multiples(ends, last)
    return (
        count
        if every is None
        else count + _multiples(every, last) - _multiples(math.lcm(ends, every), last)
    )


def _multiples(number: int, below: int) -> int:
    """Return how many multiples of a number there are from 1."""
    return max(0, below - 1) // number
