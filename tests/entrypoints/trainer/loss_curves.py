"""Loss curves of short trainings without noise, which must be equal under every strategy."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import torch
from torch import nn

from cloudtrain_trainer import tasks
from cloudtrain_trainer.arguments import parse
from cloudtrain_trainer.checkpoints.store import CheckpointStore
from cloudtrain_trainer.own_task import from_options
from cloudtrain_trainer.ranks import Ranks
from cloudtrain_trainer.sigterm import Stop
from cloudtrain_trainer.tasks import Task, digits
from cloudtrain_trainer.training.evaluation import evaluate
from cloudtrain_trainer.training.loop import Loop
from cloudtrain_trainer.training.optimizers import gradient_norm

STEPS = 2
TOLERANCE = 5e-6
"""Relative, of a loss; the largest difference seen is 1.1e-7. A float32 sum in another order
differs by as much, and AdamW, which divides each gradient by its own size, may carry that into
weights whose gradient is near zero.
"""

NORM_TOLERANCE = 1e-4
"""Relative, of the norm of all gradients before clipping: AdamW and clipping both hide gradients of
the wrong size.
"""

NOISY = (nn.BatchNorm2d, nn.Dropout)
"""Layers whose outputs depend on the other samples of a micro-batch, or on random numbers."""

OWN = "tests.entrypoints.trainer.own_models"


class SmallTask(NamedTuple):
    """A task of a few samples, as the command line names it and as it is built."""

    flags: list[str]
    build: Callable[[], Task]


def _own(name: str) -> SmallTask:
    flags = ["--task", f"{OWN}:{name}"]
    return SmallTask(flags, lambda: from_options(parse(flags)))


TASKS = {
    "digits": SmallTask(["--task", "digits"], lambda: digits.build(0)),
    "text": _own("text"),
    "padded": _own("padded"),
    "adapted": _own("adapted"),
    "on_other_base": _own("on_other_base"),
}
"""By name."""


class Curve(NamedTuple):
    """The numbers of a training."""

    losses: list[float]
    """Loss of each step over the global batch; then val_loss, and val_accuracy if there is one."""
    norms: list[float]
    """Norm of all gradients before clipping, for each step."""


class FirstSamples:
    """The first 61 samples of a data set, which no number of ranks divides evenly."""

    def __init__(self, data: tasks.Data) -> None:
        self.data = data

    def __len__(self) -> int:
        return 61

    def __getitem__(self, draw: tasks.Draw) -> tuple[torch.Tensor, torch.Tensor]:
        return self.data[draw]


def task_flags(name: str) -> list[str]:
    """The command line of a small task with a global batch of 32."""
    return [*TASKS[name].flags, "--batch-size", "32"]


def small_task(name: str, without: tuple[type[nn.Module], ...] = NOISY) -> Task:
    """The task without noisy layers, whose results do not depend on how the batch is split; little
    to evaluate.
    """
    task = TASKS[name].build()

    def model() -> nn.Module:
        whole = task.model()
        for module in list(whole.modules()):
            for child, layer in list(module.named_children()):
                if isinstance(layer, without):
                    setattr(module, child, nn.Identity())
        return whole

    return replace(task, model=model, validation=FirstSamples(task.validation))


def begin(task: Task, argv: list[str], ranks: Ranks, checkpoints: Path | None = None) -> Loop:
    """A training before its first step. `checkpoints`: its folder, if it has one."""
    options = parse(argv)
    if options.strategy == "ddp":
        ranks.init_process_group(options.backend)
    with tempfile.TemporaryDirectory() as folder:
        shared = checkpoints or Path(ranks.all_gather(folder)[0])
        return Loop(task, ranks, options, CheckpointStore(shared, 1, ranks), Stop())


def train(loop: Loop) -> Curve:
    """Train some steps and evaluate. Called by all ranks."""
    norms = []

    def record_norm(*_: object) -> None:
        norm = loop.step.clipped_norm
        norms.append(float(gradient_norm(loop.step.trained) if norm is None else norm))

    recording = loop.step.optimizer.register_step_pre_hook(record_norm)
    loop.step.wrapped.train()
    batches = loop.batches.load(0, 0)
    before = loop.step.loss.state()
    losses = []
    for number in range(STEPS):
        loop.step.train_step(batches, number, 100)
        after = loop.step.loss.state()
        loss, samples = loop.ranks.all_reduce_sum(after[0] - before[0], after[1] - before[1])
        before = after
        assert loop.task.weight or samples == loop.batches.batch_size, f"{samples} samples counted"
        losses.append(loss / samples)
    recording.remove()
    values = evaluate(loop.step, 16, 0, lambda: False)
    assert values is not None
    accuracy = [values["val_accuracy"]] if "val_accuracy" in values else []
    return Curve([*losses, values["val_loss"], *accuracy], norms)


def one_process() -> Ranks:
    """This process as a world of one rank."""
    ranks = Ranks()
    ranks.rank = ranks.local_rank = 0
    ranks.size = ranks.local_size = 1
    return ranks


def begin_in_one_process(task: Task, argv: list[str]) -> Loop:
    """The same training in a world of one rank, whatever world this process is in."""
    size = os.environ.pop("WORLD_SIZE", "1")
    try:
        return begin(task, argv, one_process())
    finally:
        os.environ["WORLD_SIZE"] = size


def relative_difference(actual: list[float], expected: list[float]) -> float:
    """The largest one of these numbers."""
    return max(abs(a - b) / max(abs(b), 1e-3) for a, b in zip(actual, expected, strict=True))
