"""Steps of GPT-2 124M on one device, by the trainer and by hand; they take turns."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import torch

from cloudtrain_trainer import hardware
from cloudtrain_trainer.checkpoints.store import CheckpointStore
from cloudtrain_trainer.options import Options
from cloudtrain_trainer.own_task import from_options
from cloudtrain_trainer.ranks import Ranks
from cloudtrain_trainer.sigterm import Stop
from cloudtrain_trainer.tasks import Draw, Task
from cloudtrain_trainer.training.loop import Loop
from tests.bench.measure import quartiles

Run = Callable[[int], None]
"""Runs that many steps."""


def training(ranks: Ranks, task: Task, options: Options, folder: Path | None = None) -> Loop:
    """Return the trainer's loop before its first step. `folder`: of its checkpoints."""
    checkpoints = CheckpointStore(folder or Path(mkdtemp()), 1, ranks)
    return Loop(task, ranks, options, checkpoints, Stop())


def advance(loop: Loop, steps: int) -> None:
    """Train this many more steps, over the ends of epochs: evaluations do not count."""
    loop.steps = loop.position.step + steps
    while loop.position.step < loop.steps:
        loop.train_epoch()
        if loop.position.samples == loop.batches.samples_per_epoch:
            loop.position = type(loop.position)(loop.position.step, loop.position.epoch + 1, 0)


def wait(ranks: Ranks) -> None:
    """Wait until the GPU has done what it was given."""
    if ranks.device.type == "cuda":
        torch.cuda.synchronize()


def by_hand(ranks: Ranks, task: Task, batch: int) -> Run:
    """Return the hand-written loop, with prepared batches: it loads nothing."""
    net = task.model().to(ranks.device)
    optimizer = torch.optim.AdamW(net.parameters(), task.lr, fused=ranks.device.type == "cuda")
    inputs, targets = (t.to(ranks.device) for t in task.train[Draw(0, list(range(batch)))])

    def run(count: int) -> None:
        net.train()
        for _ in range(count):
            optimizer.zero_grad(set_to_none=True)
            with torch.autocast(ranks.device.type, torch.bfloat16):
                loss = task.loss(net(inputs), targets)
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()

    return run


def compared(
    ranks: Ranks, options: Options, *, steps: int, rounds: int, warm: int
) -> dict[str, Any]:
    """Return tokens per second, the ratio to the loop by hand in the same round, and MFU.

    On a GPU the trainer also runs compiled.
    """
    task = from_options(options)
    batch = options.batch_size or task.batch_size
    runs: dict[str, Run] = {
        "hand": by_hand(ranks, task, batch),
        "ours": partial(advance, training(ranks, task, options)),
    }
    if ranks.device.type == "cuda":
        compiled = training(ranks, task, replace(options, compile="auto"))
        runs["ours, compiled"] = partial(advance, compiled)

    seconds: dict[str, list[float]] = {name: [] for name in runs}
    for number in range(rounds + 1):
        names = list(runs)
        for name in names[number % len(names) :] + names[: number % len(names)]:
            runs[name](warm)
            wait(ranks)
            began = time.perf_counter()
            runs[name](steps)
            wait(ranks)
            if number:  # the first round warms up
                seconds[name].append(time.perf_counter() - began)

    peak = hardware.peak_flops(hardware.device_name(ranks.device), "bf16")
    figures = {}
    for name, taken in seconds.items():
        rate = statistics.median(batch * steps / window for window in taken)
        ratios = [hand / window for hand, window in zip(seconds["hand"], taken, strict=True)]
        figures[name] = {
            "tokens_per_s": rate * task.tokens,
            "ratio": quartiles(ratios),
            "mfu": rate * task.flops / peak if peak else 0.0,
        }

    return figures
