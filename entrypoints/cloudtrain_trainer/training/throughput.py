"""Measure samples per second, for a search of the batch size or for a scaling curve."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from itertools import count
from typing import Any

import torch

from cloudtrain_job import emit_event, log_metrics
from cloudtrain_launcher.environment import MEASURED, MEASURED_REPORTS
from cloudtrain_trainer.training.memory import RESERVE_BYTES
from cloudtrain_trainer.training.run import TrainingRun

WARM_UP_STEPS = 3
"""First steps that are not measured: they import, compile, choose kernels and allocate."""
STEPS_AT_ONCE = 5
"""After this many steps all ranks wait for their devices, and for each other."""
MIN_SECONDS = 1.0
"""Minimum duration of the steps of a report."""


def reports_wanted() -> int:
    """Return how many times this run reports its throughput; 0 if it trains."""
    if not os.environ.get(MEASURED):
        return 0
    return int(os.environ.get(MEASURED_REPORTS, "1"))


def measure(run: TrainingRun, reports: int) -> str:
    """Train for a few steps and report `samples_per_s` of all ranks, `reports` times.

    Return "succeeded" or "stopped". The memory that training needs beside the steps is held
    meanwhile. Called by all ranks.
    """
    reserve = torch.empty(RESERVE_BYTES, dtype=torch.uint8, device=run.device)
    batches = _batches(run)
    run.step.wrapped.train()
    _train(run, batches, 0, WARM_UP_STEPS)
    run.ranks.begin_training(run.options.timeout)
    run.step.clock.start()

    steps_done = WARM_UP_STEPS
    for _ in range(reports):
        steps, seconds = _measure_once(run, batches, steps_done)
        if not steps:
            return "stopped"
        steps_done += steps
        rate = round(steps * run.batches.batch_size / seconds, 3)
        emit_event(run.step.clock.event(steps_done, run.batches.batch_size))
        log_metrics(step=steps_done, samples_per_s=rate)
        run.ranks.log(
            f"measured {steps} steps in {seconds:.2f} s: {rate:,.1f} {run.task.unit} per second"
        )
        run.metrics["samples_per_s"] = rate
    del reserve
    return "succeeded"


def _measure_once(
    run: TrainingRun, batches: Iterator[tuple[Any, Any]], steps_done: int
) -> tuple[int, float]:
    """Return the number of steps and their seconds; no steps if a stop was requested."""
    steps = 0
    ended = False
    run.ranks.barrier()
    began = time.monotonic()
    while not ended:
        _train(run, batches, steps_done + steps, STEPS_AT_ONCE)
        steps += STEPS_AT_ONCE
        seconds = time.monotonic() - began
        is_over = run.ranks.rank == 0 and seconds >= MIN_SECONDS
        ended, stopped = map(bool, run.ranks.all_reduce_max(is_over, run.stop.requested)())
        if stopped:
            return 0, seconds
    return steps, seconds


def _train(run: TrainingRun, batches: Iterator[tuple[Any, Any]], first: int, steps: int) -> None:
    """Train for `steps` steps and wait until their kernels have ended.

    The schedule stays at its last step.
    """
    for step in range(first, first + steps):
        run.step.train_step(batches, min(step, run.steps - 1), run.steps)
        run.stop.step_done()
    if run.device.type == "cuda":
        for device in run.strategy.devices:
            torch.cuda.synchronize(device)


def _batches(run: TrainingRun) -> Iterator[tuple[Any, Any]]:
    """Yield this rank's micro-batches, of one epoch after the other."""
    for epoch in count():
        yield from run.batches.load(epoch, skip=0)
