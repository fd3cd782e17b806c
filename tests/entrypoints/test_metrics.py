"""Throughput, the time between progress events, and the mean loss."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from cloudtrain_trainer import tasks
from cloudtrain_trainer.data.batches import Batches
from cloudtrain_trainer.reporting.metrics import LossMean, Meter
from cloudtrain_trainer.tasks import Draw
from cloudtrain_trainer.training.loop import Loop


def test_the_loss_mean_is_weighted_by_samples_and_can_be_restored() -> None:
    mean = LossMean(torch.device("cpu"))
    mean.add(torch.tensor(1.0), 3)
    restored = LossMean(torch.device("cpu"))
    restored.restore(mean.state())
    restored.add(torch.tensor(5.0), 1)
    assert restored.value() == 2.0


def test_progress_is_due_after_the_first_step_and_then_every_half_second() -> None:
    clock = [0.0]
    meter = Meter(clock=lambda: clock[0])
    meter.count(10)
    assert meter.due()
    clock[0] = 2.0
    assert meter.rate() == 5.0
    clock[0] = 2.4
    assert not meter.due()
    clock[0] = 2.5
    assert meter.due()


class TimedData:
    """Data whose batches take this many seconds of a simulated clock."""

    def __init__(self, data: tasks.Data, clock: list[float], seconds: float) -> None:
        self.data = data
        self.now = clock
        self.seconds = seconds

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, draw: Draw) -> tuple[torch.Tensor, torch.Tensor]:
        self.now[0] += self.seconds
        return self.data[draw]


def test_the_rate_after_an_evaluation_does_not_include_its_time(
    make_loop: Callable[..., Loop], capfd: pytest.CaptureFixture[str]
) -> None:
    """A step of 32 samples takes one second, an evaluation of 12 batches 12 minutes."""
    clock = [0.0]
    loop = make_loop("--epochs", "2")
    loop.meter = Meter(clock=lambda: clock[0])
    train = TimedData(loop.task.train, clock, 1.0)
    validation = TimedData(loop.task.validation, clock, 60.0)
    assert isinstance(loop.batches, Batches)
    loop.batches = replace(loop.batches, data=train)
    loop.step.task = replace(loop.task, validation=validation)
    loop.run()
    lines = [line for line in capfd.readouterr().out.splitlines() if '"type":"progress"' in line]
    rates = {json.loads(line.partition(" ")[2])["samples_per_s"] for line in lines}
    assert rates == {32.0}
    assert clock[0] == 2 * 44 + 2 * 12 * 60
    assert loop.meter.mean_rate() == 2 * 44 * 32 / clock[0], "the mean rate includes evaluations"
