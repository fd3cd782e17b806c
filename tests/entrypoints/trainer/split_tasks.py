"""The built-in tasks gpt and mnist as small tasks of loss_curves.py, for strategies that split a
model.
"""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path

import torch

from cloudtrain_trainer import strategies, tasks
from cloudtrain_trainer.arguments import parse
from cloudtrain_trainer.checkpoints.store import CheckpointStore
from cloudtrain_trainer.ranks import Ranks
from cloudtrain_trainer.sigterm import Stop
from cloudtrain_trainer.tasks import Task
from cloudtrain_trainer.training.loop import Loop
from tests.entrypoints.trainer.loss_curves import TASKS, SmallTask

PADDED = "padded gpt"


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


TASKS["gpt"] = SmallTask(["--task", "gpt"], lambda: tasks.build("gpt", 0))
TASKS["mnist"] = SmallTask(
    ["--task", "mnist", "--data=digits"], lambda: tasks.build("mnist", 0, data="digits")
)
TASKS[PADDED] = SmallTask(["--task", "gpt"], padded_text)


def begin(task: Task, argv: list[str], ranks: Ranks, checkpoints: Path | None = None) -> Loop:
    """As in loss_curves.py, with checkpoints of ranks that share a model."""
    options = parse(argv)
    strategy = strategies.build(ranks, options)
    strategy.start()
    with tempfile.TemporaryDirectory() as folder:
        shared = checkpoints or Path(ranks.all_gather(folder)[0])
        store = CheckpointStore(shared, 1, ranks, strategy.shard_group_size)
        return Loop(task, strategy, options, store, Stop())
