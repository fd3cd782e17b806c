"""Measure samples per second, for a search of the batch size or for a scaling curve."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from itertools import count
from typing import TYPE_CHECKING, Any

import torch

from cloudtrain_job import emit_event, log_metrics
from cloudtrain_launcher.environment import MEASURED, MEASURED_REPORTS
from cloudtrain_trainer.training.memory import RESERVE_BYTES

if TYPE_CHECKING:
    from cloudtrain_trainer.training.loop import Loop

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


def measure(loop: Loop, reports: int) -> str:
    """Train for a few steps and report `samples_per_s` of all ranks, `reports` times.

    Return "succeeded" or "stopped". The memory that training needs beside the steps is held
    meanwhile. Called by all ranks.
    """
    reserve = torch.empty(RESERVE_BYTES, dtype=torch.uint8, device=loop.device)
    batches = _batches(loop)
    loop.step.wrapped.train()
    _train(loop, batches, 0, WARM_UP_STEPS)
    loop.ranks.begin_training(loop.options.timeout)
    loop.step.clock.restart()

    steps_done = WARM_UP_STEPS
    for _ in range(reports):
        steps, seconds = _measure_once(loop, batches, steps_done)
        if not steps:
            return "stopped"
        steps_done += steps
        rate = round(steps * loop.batches.batch_size / seconds, 3)
        emit_event(loop.step.clock.take(steps_done, loop.batches.batch_size))
        log_metrics(step=steps_done, samples_per_s=rate)
        loop.ranks.log(
            f"measured {steps} steps in {seconds:.2f} s: {rate:,.1f} {loop.task.unit} per second"
        )
        loop.metrics["samples_per_s"] = rate
    del reserve
    return "succeeded"


def _measure_once(
    loop: Loop, batches: Iterator[tuple[Any, Any]], steps_done: int
) -> tuple[int, float]:
    """Return the number of steps and their seconds; no steps if a stop was requested."""
    steps = 0
    ended = False
    loop.ranks.barrier()
    began = time.monotonic()
    while not ended:
        _train(loop, batches, steps_done + steps, STEPS_AT_ONCE)
        steps += STEPS_AT_ONCE
        seconds = time.monotonic() - began
        is_over = loop.ranks.rank == 0 and seconds >= MIN_SECONDS
        ended, stopped = map(bool, loop.ranks.all_reduce_max(is_over, loop.stop.requested)())
        if stopped:
            return 0, seconds
    return steps, seconds


def _train(loop: Loop, batches: Iterator[tuple[Any, Any]], first: int, steps: int) -> None:
    """Train for `steps` steps and wait until their kernels have ended.

    The schedule stays at its last step.
    """
    for step in range(first, first + steps):
        loop.step.train_step(batches, min(step, loop.steps - 1), loop.steps)
        loop.stop.step_done()
    if loop.device.type == "cuda":
        for device in loop.strategy.devices:
            torch.cuda.synchronize(device)


def _batches(loop: Loop) -> Iterator[tuple[Any, Any]]:
    """Yield this rank's micro-batches, of one epoch after the other."""
    for epoch in count():
        yield from loop.batches.load(epoch, skip=0)
