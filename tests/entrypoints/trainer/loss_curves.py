"""Loss curves of short trainings without noise, which must be equal under every strategy."""

from __future__ import annotations

import os
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import torch
from torch import nn

from cloudtrain_trainer import strategies, tasks
from cloudtrain_trainer.arguments import parse
from cloudtrain_trainer.checkpoints.store import CheckpointStore
from cloudtrain_trainer.ranks import Ranks
from cloudtrain_trainer.reporting.metrics import evaluate
from cloudtrain_trainer.sigterm import Stop
from cloudtrain_trainer.tasks import Task
from cloudtrain_trainer.training.loop import Loop

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

TASK_OPTIONS = {"mnist": {"data": "digits"}}
PADDED = "padded"
"""The task gpt with sequences of other lengths, whose padding has the label -100."""
"""Options that keep tasks small and download no data."""


class Curve(NamedTuple):
    """The numbers of a training."""

    losses: list[float]
    """Loss of each step over the global batch; then val_loss and val_accuracy."""
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


class PaddedText:
    """A data set of tokens, padded after 3 to 64 of them; one sequence in seven is empty."""

    def __init__(self, data: tasks.Data) -> None:
        self.data = data

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, draw: tasks.Draw) -> tuple[torch.Tensor, torch.Tensor]:
        tokens, labels = self.data[draw]
        indices = torch.tensor(draw.indices)
        lengths = torch.where(indices % 7 == 0, 0, 3 + indices * 17 % 62)
        return tokens, labels.masked_fill(torch.arange(64) >= lengths[:, None], -100)


def padded_text() -> Task:
    task = tasks.build("gpt", 0)
    return replace(
        task,
        weight=lambda labels: (labels != -100).sum(),
        train=PaddedText(task.train),
        validation=PaddedText(task.validation),
    )


def task_flags(name: str) -> list[str]:
    """The command line of a small task with a global batch of 32."""
    return [
        "--task",
        "gpt" if name == PADDED else name,
        "--batch-size",
        "32",
        *(f"--{k}={v}" for k, v in TASK_OPTIONS.get(name, {}).items()),
    ]


def small_task(name: str, without: tuple[type[nn.Module], ...] = NOISY) -> Task:
    """The task without noisy layers, whose results do not depend on how the batch is split; little
    to evaluate.
    """
    built_in = name != PADDED
    task = tasks.build(name, 0, **TASK_OPTIONS.get(name, {})) if built_in else padded_text()

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
    strategy = strategies.build(ranks, options)
    strategy.start()
    with tempfile.TemporaryDirectory() as folder:
        shared = checkpoints or Path(ranks.all_gather(folder)[0])
        return Loop(
            task,
            strategy,
            options,
            CheckpointStore(shared, 1, ranks, strategy.shard_group_size),
            Stop(),
        )


def train(loop: Loop) -> Curve:
    """Train some steps and evaluate. Called by all ranks."""
    norms = []
    update = loop.step._update

    def record_and_update(step: int) -> None:
        norms.append(float(loop.step.gradients.norm()))
        update(step)

    loop.step._update = record_and_update  # type: ignore[method-assign]
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
    values = evaluate(loop.step, 16, 0, lambda: False)
    assert values is not None
    return Curve([*losses, values["val_loss"], values["val_accuracy"]], norms)


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
