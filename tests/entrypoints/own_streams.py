"""Iterables as a user writes them, and a model whose weights count how often it was trained on each
sample.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from cloudtrain_trainer.tasks import Task

SAMPLES = 40
BATCH = 4


class Numbers:
    """The numbers of the samples, of every `of`-th from `index` on. It remembers its position, as
    torchdata asks.
    """

    num_shards = SAMPLES

    def __init__(self, of: int = 1, index: int = 0) -> None:
        self.of = of
        self.at = index
        self.first = index

    def __iter__(self) -> Iterator[int]:
        while self.at < SAMPLES:
            self.at += self.of
            yield self.at - self.of
        self.at = self.first

    def state_dict(self) -> dict[str, Any]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.at = state["at"]


class Shards(Numbers):
    """Each rank reads its share."""

    def shard(self, num_shards: int, index: int) -> Shards:
        return Shards(num_shards, index)


class Forgetful:
    """Without a position: a resume reads again what was seen."""

    def __len__(self) -> int:
        return SAMPLES

    def __iter__(self) -> Iterator[int]:
        yield from range(SAMPLES)


class Counts(nn.Module):
    """A number per sample."""

    def __init__(self) -> None:
        super().__init__()
        self.used = nn.Parameter(torch.zeros(SAMPLES))

    def forward(self, samples: Tensor) -> Tensor:
        return self.used[samples].mean()


def optimizer(named_parameters: list[tuple[str, Tensor]]) -> torch.optim.Optimizer:
    """Each use of a sample lowers its number by one."""
    return torch.optim.SGD([parameter for _, parameter in named_parameters], lr=float(BATCH))


def _task(data: Any) -> Task:
    return Task(model=Counts, train=data, step=lambda model, batch: model(batch), batch_size=BATCH)


def numbers() -> Task:
    return _task(Numbers())


def shards() -> Task:
    return _task(Shards())


def forgetful() -> Task:
    return _task(Forgetful())
