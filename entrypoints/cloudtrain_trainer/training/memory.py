"""Find the largest micro-batch that fits on all ranks, and measure the throughput of a batch.

Before training, one micro-batch is tried. A rank that runs out of memory during training stores
half of the size that it tried and exits with `OOM_EXIT`; the next start uses that size. In both
cases more accumulation steps keep the global batch the same.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Iterator
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any

import torch

from cloudtrain_job import emit_event, log_metrics
from cloudtrain_launcher.environment import MEASURED, MEASURED_REPORTS
from cloudtrain_launcher.events import Memory
from cloudtrain_trainer import hardware, state
from cloudtrain_trainer.data.streams import first_batch
from cloudtrain_trainer.ranks import Ranks
from cloudtrain_trainer.training.optimizers import NUMBERS_PER_PARAMETER
from cloudtrain_trainer.training.run import TrainingRun

OOM_EXIT = 12
"""The exit code of a rank that ran out of memory: the number of ENOMEM."""

FILE = "micro-batch.json"
"""The cache's file, in the checkpoint folder: it is kept as long as the checkpoints are."""

RESERVE_BYTES = 64 << 20
"""Memory that a trial must leave free for checkpoint threads, libraries and fragmentation."""

WARM_UP_STEPS = 3
"""First steps that are not measured: they import, compile, choose kernels and allocate."""
STEPS_AT_ONCE = 5
"""After this many steps all ranks wait for their devices, and for each other."""
MIN_SECONDS = 1.0
"""Minimum duration of the steps of a report."""

_OOM_MESSAGES = re.compile(
    r"out of memory"
    r"|can't allocate memory|Cannot allocate memory|bad_alloc|not enough memory"
    r"|CUDNN_STATUS_(ALLOC_FAILED|INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED)"
    r"|(CUBLAS|CUSOLVER)_STATUS_ALLOC_FAILED"
    r"|NCCL.*Failed to (CUDA )?(m|c)alloc"
    r"|Unable to find (a valid|an) (cuDNN algorithm|engine)"
)


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an error is, probably, out of memory.

    On a CPU and in cuDNN only the text of a RuntimeError shows it.
    """
    if isinstance(error, (torch.OutOfMemoryError, MemoryError)):
        return True
    return isinstance(error, RuntimeError) and bool(_OOM_MESSAGES.search(str(error)))


def describe_error(error: BaseException) -> str:
    """Return the error's first line, at most 300 characters."""
    return (str(error).splitlines() or [type(error).__name__])[0][:300]


class MicroBatchCache:
    """The largest micro-batch known to fit (samples per rank), by task, strategy and GPU."""

    def __init__(self, folder: Path, ranks: Ranks, key: str) -> None:
        self.path = folder / FILE
        self.ranks = ranks
        self.key = key

    def read(self) -> int | None:
        """Return the smallest size that a rank has stored, or None. Called by all ranks."""
        mine = None
        with suppress(OSError, ValueError, AttributeError):
            mine = json.loads(self.path.read_text()).get(self.key)

        limits = [
            value for value in self.ranks.all_gather(mine) if isinstance(value, int) and value >= 1
        ]

        return min(limits, default=None)

    def write(self, micro_batch: int) -> None:
        """Store a size in samples by this rank alone: its peers may wait in a collective.

        OSError on a full disk.
        """
        temporary = self.path.with_name(f"{FILE}.{self.ranks.rank}.partial")
        temporary.write_text(json.dumps({self.key: micro_batch}))
        temporary.replace(self.path)


def fit_micro_batch(run: TrainingRun, cache: MicroBatchCache) -> None:
    """Increase the accumulation steps until a micro-batch fits: the cached size, then trials.

    Raise `Refused` if the batch cannot be split further. Called by all ranks.
    """
    step = run.step
    device = run.device
    cached = cache.read()

    if cached is not None and cached < run.micro_batch:
        run.split_to_fit(cached)
        run.ranks.log(
            f"an earlier start ran out of memory: micro-batches of {run.micro_batch} samples per"
            f" rank, {step.accumulation_steps} per step; the batch stays {run.batches.batch_size}"
        )

    probe = run.options.probe_memory
    if probe == "no" or run.options.eval_only or (probe == "auto" and device.type != "cuda"):
        return

    if run.strategy.communicates_in_forward:
        if probe == "yes":
            run.ranks.log(
                f"--probe-memory: --strategy {run.options.strategy} can only be tried by its first"
                " step"
            )

        return

    refused = []
    while run.ranks.all_reduce_max(not _fits(run))()[0]:
        refused.append(run.micro_batch)
        run.split_to_fit(run.micro_batch // 2)

    if refused:
        cache.write(run.micro_batch)
        run.ranks.log(
            f"memory: micro-batches of {' and '.join(map(str, refused))} samples per rank do not"
            f" fit on all ranks; they now have {run.micro_batch} samples, with"
            f" {step.accumulation_steps} per step; the batch stays {run.batches.batch_size}. Batch"
            " norm sees the smaller micro-batches"
        )
        if run.ranks.rank == 0:
            emit_event(
                Memory(refused=refused, micro_batch=run.micro_batch, parts=step.accumulation_steps)
            )


def _fits(run: TrainingRun) -> bool:
    """Try one micro-batch with the optimizer's state on this rank; return whether they fit.

    Model and generators are restored.
    """
    step = run.step
    devices = run.strategy.devices
    generators = state.generator_states(devices)
    buffers = state.buffers(step.model, step.task.statistics(step.model))
    sums = step.loss.state()
    step.wrapped.train()

    try:
        _try(run)
        return True
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        return False  # the error's frames hold tensors, which are freed here
    finally:
        step.optimizer.zero_grad(set_to_none=True)
        state.restore_generators(generators, devices)
        state.restore_buffers(step.model, buffers, step.task.statistics(step.model))
        step.loss.restore(sums)
        if run.device.type == "cuda":
            torch.cuda.empty_cache()


def _try(run: TrainingRun) -> None:
    step = run.step
    inputs, targets = step.to_device(*first_batch(run.task.train, run.micro_batch))
    # The optimizer's first step allocates its state; of a user's it is not known.
    copies = 0 if step.optimizer.state else NUMBERS_PER_PARAMETER.get(step.options.optimizer, 2)
    trained = [p for p in step.model.parameters() if p.requires_grad]
    moments = [torch.empty_like(p) for p in trained for _ in range(copies)]
    reserve = torch.empty(RESERVE_BYTES, dtype=torch.uint8, device=run.device)
    with hardware.run_eagerly():  # a graph for each size that is tried would cost minutes
        run.strategy.forward_backward_alone(step, inputs, targets)
    if run.device.type == "cuda":
        torch.cuda.synchronize()

    del moments, reserve


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
