"""Which samples every rank sees, in which order: the same global batches on any number of ranks."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor
from torch.utils.data import DataLoader

from cloudtrain_trainer.rules import Refused
from cloudtrain_trainer.tasks import Data, Draw

EVALUATION_BATCH = 256
"""Samples per rank, at most."""
MOST_PROCESSES = 16
"""Of a loader: more of them wait for the disk, and each takes memory."""


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
        self._loader.sampler[:] = self.draws(epoch, skip)  # type: ignore[index]
        return iter(self._loader)

    @cached_property
    def _loader(self) -> DataLoader[tuple[Tensor, Tensor]]:
        """One for all epochs, so that its processes stay; its sampler is a list that is filled anew."""
        return loader(self.data, [], self.workers, self.pin_memory, stays=True)

    def draws(self, epoch: int, skip: int) -> Iterator[Draw]:
        """An order of its own for each epoch, drawn from (seed, epoch); this rank's parts of each batch."""
        generator = torch.Generator().manual_seed(self.seed * 1_000_003 + epoch)
        order = torch.randperm(len(self.data), generator=generator).tolist()
        for first in range(skip, self.samples_per_epoch, self.batch_size):
            batch = order[first : first + self.batch_size]
            for part in range(self.parts):
                yield Draw(epoch, share(batch, self.ranks * self.parts, self.rank * self.parts + part))


def loader(
    data: Data, draws: list[Draw], workers: int, pin_memory: bool, stays: bool = False
) -> DataLoader[tuple[Tensor, Tensor]]:
    """Fetches the draws in order, ahead of their use where it has processes for that; with `stays` they stay."""
    return DataLoader(
        data,  # type: ignore[arg-type]  # it asks for a class; this one is known by its methods
        sampler=draws,
        batch_size=None,  # a draw is a whole batch
        num_workers=workers,
        pin_memory=pin_memory,
        persistent_workers=stays and workers > 0,
        worker_init_fn=_outlive_sigterm,
        # By default each iterator draws from the global generator, and a resumed run makes one more.
        generator=torch.Generator(),
    )


def _outlive_sigterm(_: int) -> None:
    """A stop reaches the whole process group; the rank still needs its data until all ranks have agreed on the end.

    A loader's process ends with the rank, whatever becomes of that.
    """
    signal.signal(signal.SIGTERM, signal.SIG_IGN)


def loader_processes(asked: int | None, task: int | None, cores: int, ranks: int) -> int:
    """Loader processes per rank of a node: as asked for, else the task's, else what the machine has left over."""
    if asked is not None:
        return asked
    if task is not None:
        return task
    return max(0, min(MOST_PROCESSES, cores // ranks - 1))


def evaluation_draws(
    samples: int, rank: int, ranks: int, batch_size: int = EVALUATION_BATCH
) -> Iterator[tuple[Draw, int]]:
    """(draw, how many of it count): every sample counts on exactly one rank. `batch_size`: of one rank, at most.

    All ranks get equally many draws, since strategies may communicate in a forward pass: a rank with nothing
    left gets one sample that does not count.
    """
    for first in range(0, samples, batch_size * ranks):
        mine = share(list(range(first, min(first + batch_size * ranks, samples))), ranks, rank)
        yield Draw(0, mine or [0]), len(mine)


def share(samples: list[int], parts: int, part: int) -> list[int]:
    """One of `parts` shares that differ in size by at most one."""
    return samples[len(samples) * part // parts : len(samples) * (part + 1) // parts]
