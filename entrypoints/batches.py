"""Which samples every rank sees, in which order: the same global batches on any number of ranks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.utils.data import DataLoader

from arguments import Refused
from tasks import Data, Draw

EVALUATION_BATCH = 256
"""Samples per rank."""


@dataclass(frozen=True)
class Batches:
    """The training data of one rank, cut into global batches; a step takes `parts` of them on each rank."""

    data: Data
    seed: int
    batch_size: int
    """Samples per step over all ranks."""
    parts: int
    """Accumulated parts per rank and step."""
    rank: int
    ranks: int
    workers: int
    pin_memory: bool

    def __post_init__(self) -> None:
        if self.batch_size > len(self.data):
            raise Refused(
                f"--batch-size {self.batch_size} is more than the {len(self.data)} training samples: "
                f"use {len(self.data)} or less"
            )
        if self.batch_size < self.ranks * self.parts:
            raise Refused(
                f"--batch-size {self.batch_size} is the batch of all ranks together and leaves some of "
                f"{self.ranks} ranks x {self.parts} accumulated parts empty: "
                f"use at least {self.ranks * self.parts}"
            )

    @property
    def samples_per_epoch(self) -> int:
        """Over all ranks. What does not fill a last batch is left out; every epoch leaves out others."""
        return len(self.data) // self.batch_size * self.batch_size

    def load(self, epoch: int, skip: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Inputs and targets of this rank's parts, after the first `skip` samples of the epoch."""
        loader: DataLoader[tuple[Tensor, Tensor]] = DataLoader(
            self.data,  # type: ignore[arg-type]  # it asks for a class; this one is known by its methods
            sampler=list(self.draws(epoch, skip)),
            batch_size=None,  # a draw is a whole batch
            num_workers=self.workers,
            pin_memory=self.pin_memory,
            # By default each iterator draws from the global generator, and a resumed run makes one more.
            generator=torch.Generator(),
        )
        return iter(loader)

    def draws(self, epoch: int, skip: int) -> Iterator[Draw]:
        """An order of its own for each epoch, drawn from (seed, epoch); this rank's parts of each batch."""
        generator = torch.Generator().manual_seed(self.seed * 1_000_003 + epoch)
        order = torch.randperm(len(self.data), generator=generator).tolist()
        for first in range(skip, self.samples_per_epoch, self.batch_size):
            batch = order[first : first + self.batch_size]
            for part in range(self.parts):
                yield Draw(epoch, share(batch, self.ranks * self.parts, self.rank * self.parts + part))


def evaluation_draws(samples: int, rank: int, ranks: int) -> Iterator[tuple[Draw, int]]:
    """(draw, how many of it count): every sample counts on exactly one rank.

    All ranks get equally many draws, since strategies may communicate in a forward pass: a rank with nothing
    left gets one sample that does not count.
    """
    for first in range(0, samples, EVALUATION_BATCH * ranks):
        mine = share(list(range(first, min(first + EVALUATION_BATCH * ranks, samples))), ranks, rank)
        yield Draw(0, mine or [0]), len(mine)


def share(samples: list[int], parts: int, part: int) -> list[int]:
    """One of `parts` shares that differ in size by at most one."""
    return samples[len(samples) * part // parts : len(samples) * (part + 1) // parts]
