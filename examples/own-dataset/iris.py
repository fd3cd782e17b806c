"""A model and a data set of one's own for the shared trainer: 150 irises, of three kinds, by four measures.

`Iris` is an ordinary `torch.utils.data.Dataset`; `build` is what `--model iris:build` names.
"""

from __future__ import annotations

import torch
from sklearn.datasets import load_iris
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import Dataset, random_split

from cloudtrain_trainer.tasks import Task


class Iris(Dataset[tuple[Tensor, Tensor]]):
    """One flower at a time: its measures, a little noisy, and its kind."""

    def __init__(self) -> None:
        measures, kinds = load_iris(return_X_y=True)
        self.measures = torch.tensor(measures, dtype=torch.float32)
        self.kinds = torch.tensor(kinds)

    def __len__(self) -> int:
        return len(self.kinds)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return self.measures[index] + 0.05 * torch.randn(4), self.kinds[index]


def model() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 3))


def correct(outputs: Tensor, kinds: Tensor) -> Tensor:
    return (outputs.argmax(1) == kinds).sum()


def build(seed: int) -> Task:
    train, validation = random_split(Iris(), [120, 30], generator=torch.Generator().manual_seed(seed))
    return Task(
        model=model,
        loss=F.cross_entropy,
        correct=correct,
        train=train,
        validation=validation,
        epochs=20,
        batch_size=16,
        lr=1e-2,
        weight_decay=1e-2,
        unit="flowers",
    )
