"""Choose and order each rank's samples: global batches do not depend on the ranks."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch.utils.data import DataLoader

from cloudtrain_trainer.rules import Refused
from cloudtrain_trainer.tasks import Data, Draw

MAX_EVALUATION_BATCH = 256
"""Samples per rank and batch of an evaluation."""
MAX_LOADER_PROCESSES = 16
"""Per data loader: more processes wait for the disk, and each takes memory."""


@dataclass(frozen=True)
class Batches:
    """One rank's training data, split evenly into `ranks` x `accumulation_steps` micro-batches.

    Raise `Refused` if the batch is larger than the data set, or too small for one sample per
    micro-batch.
    """

    data: Data
    seed: int
    batch_size: int
    """Samples per step over all ranks."""
    accumulation_steps: int
    """Micro-batches per rank and step."""
    rank: int
    """This rank's share of the batch; ranks that split one model have the same."""
    ranks: int
    """The number of shares."""
    workers: int
    """Loader processes of this rank."""
    pin_memory: bool

    def __post_init__(self) -> None:
        if self.batch_size > len(self.data):
            raise Refused(
                f"--batch-size {self.batch_size} is more than the {len(self.data)} training"
                f" samples: use {len(self.data)} or less"
            )
        if self.batch_size < self.ranks * self.accumulation_steps:
            raise Refused(
                f"--batch-size {self.batch_size} is the batch of all ranks together and leaves some"
                f" of {self.ranks} ranks x {self.accumulation_steps} accumulation steps empty: use"
                f" at least {self.ranks * self.accumulation_steps}"
            )

    @property
    def samples_per_epoch(self) -> int:
        """Return the samples over all ranks, a multiple of the batch size.

        The remaining samples are left out in each epoch.
        """
        return len(self.data) // self.batch_size * self.batch_size

    def load(self, epoch: int, skip: int) -> Iterator[tuple[Any, Any]]:
        """Yield this rank's micro-batches: inputs (batch, ...), targets (batch, ...), on the CPU.

        `skip`: number of samples over all ranks that were trained on before, a multiple of the
        batch size.
        """
        self._loader.sampler[:] = self.draws(epoch, skip)  # type: ignore[index]
        return iter(self._loader)

    def trial(self, samples: int) -> tuple[Any, Any]:
        """Return a micro-batch of the first samples, for a trial, repeated if there are fewer."""
        return self.data[Draw(0, [index % len(self.data) for index in range(samples)])]

    @cached_property
    def _loader(self) -> DataLoader[tuple[Any, Any]]:
        """Return one loader for all epochs, so that its processes persist; `load` fills its sampler."""
        return loader(self.data, [], self.workers, self.pin_memory, persistent=True)

    def draws(self, epoch: int, skip: int) -> Iterator[Draw]:
        """Yield the draw of each micro-batch of this rank, in the order of (seed, epoch).

        `skip`: number of samples over all ranks to leave out at the beginning.
        """
        generator = torch.Generator().manual_seed(self.seed * 1_000_003 + epoch)
        order = torch.randperm(len(self.data), generator=generator).tolist()
        parts = self.ranks * self.accumulation_steps
        for first in range(skip, self.samples_per_epoch, self.batch_size):
            batch = order[first : first + self.batch_size]
            for part in range(self.accumulation_steps):
                yield Draw(
                    epoch, split_evenly(batch, parts, self.rank * self.accumulation_steps + part)
                )


def loader(
    data: Data, draws: list[Draw], workers: int, pin_memory: bool, persistent: bool = False
) -> DataLoader[tuple[Any, Any]]:
    """Return a loader of inputs (batch, ...) and targets (batch, ...) of each draw, in order.

    `workers`: number of processes; 0 loads in this process. `persistent`: keep them after an epoch.
    """
    return DataLoader(
        data,  # type: ignore[arg-type]  # a Dataset by its methods, not by its class
        sampler=draws,
        batch_size=None,  # each draw is a batch already
        num_workers=workers,
        pin_memory=pin_memory,
        persistent_workers=persistent and workers > 0,
        worker_init_fn=_ignore_sigterm,
        # The default draws a seed from the global generator per iterator, and a resumed run creates
        # one more iterator.
        generator=torch.Generator(),
    )


def _ignore_sigterm(_: int) -> None:
    """Ignore SIGTERM: the rank needs data until all ranks stop together.

    A stop signals the whole process group. A loader process ends when its rank does.
    """
    signal.signal(signal.SIGTERM, signal.SIG_IGN)


def loader_processes(requested: int | None, task: int | None, cores: int, ranks: int) -> int:
    """Return the number of loader processes per rank; 0: the rank loads its data itself.

    `requested` counts, else the task's default, else the idle cores. `cores`, `ranks`: of this
    node.
    """
    if requested is not None:
        return requested
    if task is not None:
        return task
    return max(0, min(MAX_LOADER_PROCESSES, cores // ranks - 1))


def evaluation_draws(
    samples: int, rank: int, ranks: int, batch_size: int = MAX_EVALUATION_BATCH
) -> Iterator[tuple[Draw, int]]:
    """Yield (draw, number of samples that count): over all ranks each counts once.

    All ranks get the same number of draws, since a strategy may communicate in the forward pass. A
    rank without samples left gets one that does not count. `batch_size`: maximum per rank.
    """
    for first in range(0, samples, batch_size * ranks):
        mine = split_evenly(
            list(range(first, min(first + batch_size * ranks, samples))), ranks, rank
        )
        yield Draw(0, mine or [0]), len(mine)


def split_evenly(samples: list[int], parts: int, part: int) -> list[int]:
    """Return part number `part` (from 0) of `parts` consecutive parts of about equal size.

    Sizes differ by at most one; a part may be empty.
    """
    return samples[len(samples) * part // parts : len(samples) * (part + 1) // parts]
