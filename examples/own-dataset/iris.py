"""A custom task for the shared trainer: the species of 150 iris flowers from four measurements.

`Iris` is an ordinary `torch.utils.data.Dataset`; `--model iris:build` names the function that makes
the task.
"""

from __future__ import annotations

import torch
from sklearn.datasets import load_iris
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import Dataset, random_split

from cloudtrain_trainer.tasks import Task


class Iris(Dataset[tuple[Tensor, Tensor]]):
    """One flower per sample: four measurements in cm with a little noise, and the species (0 to 2)."""

    def __init__(self) -> None:
        measurements, species = load_iris(return_X_y=True)
        self.measurements = torch.tensor(measurements, dtype=torch.float32)
        self.species = torch.tensor(species)

    def __len__(self) -> int:
        return len(self.species)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return self.measurements[index] + 0.05 * torch.randn(4), self.species[index]


def model() -> nn.Module:
    """A network of input shape (batch, 4) and logits (batch, 3)."""
    return nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 3))


def correct(logits: Tensor, species: Tensor) -> Tensor:
    """The count of correct predictions, shape (). `logits`: (batch, 3). `species`: (batch,)."""
    return (logits.argmax(1) == species).sum()


def build(seed: int) -> Task:
    """The task. `seed`: of the split into training and validation data."""
    train, validation = random_split(
        Iris(), [120, 30], generator=torch.Generator().manual_seed(seed)
    )
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
