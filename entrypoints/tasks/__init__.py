"""What is learnt: model, data and loss. One small file per task.

A new task is a new file here with `build(seed) -> Task`; its file name is the value of `--task`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import NamedTuple, Protocol

from torch import Tensor, nn


class Draw(NamedTuple):
    """Which samples of a data set make a batch, and in which epoch.

    Noise drawn from (seed, epoch, index) is the same on any number of ranks and workers, and after a resume.
    """

    epoch: int
    indices: list[int]


class Data(Protocol):
    """Samples that are fetched a batch at a time."""

    def __len__(self) -> int: ...

    def __getitem__(self, draw: Draw) -> tuple[Tensor, Tensor]:
        """Inputs (n, ...) and targets (n, ...) on the CPU."""
        ...


@dataclass(frozen=True)
class Task:
    """All that the loop needs to know. The numbers are defaults that the command line may override."""

    model: Callable[[], nn.Module]
    """Builds the model on the CPU with fresh weights from torch's generator."""
    loss: Callable[[Tensor, Tensor], Tensor]
    """(outputs, targets) -> the MEAN over the samples."""
    correct: Callable[[Tensor, Tensor], Tensor]
    """(outputs, targets) -> how many samples are right, a scalar."""
    train: Data
    validation: Data
    epochs: int
    batch_size: int
    """Samples per step over all ranks."""
    lr: float
    weight_decay: float
    workers: int = 0
    """Loader processes per rank; 0 where samples lie in memory."""


def build(name: str, seed: int) -> Task:
    """The task of that name; the seed fixes the split and the noise."""
    task: Task = import_module("tasks." + name.replace("-", "_")).build(seed)
    return task
