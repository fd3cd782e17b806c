"""Choose and order each rank's samples: global batches do not depend on the ranks."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader

from cloudtrain_trainer.data.samples import restored_generators
from cloudtrain_trainer.rules import Refused
from cloudtrain_trainer.tasks import Data, Draw
from cloudtrain_trainer.trees import map_tensors, tensors
from cloudtrain_wire.parent_death import set_parent_death_signal

MAX_EVALUATION_BATCH = 256
"""Samples per rank and batch of an evaluation."""
MAX_LOADER_PROCESSES = 16
"""Per data loader: more processes wait for the disk, and each takes memory."""
HANDOVER_SECONDS = 1e-3
"""Time of a micro-batch that a rank rather reads itself.

To take two tensors from another process costs it 0.7 ms.
"""
TRIAL_SAMPLES = 16
AHEAD_SECONDS = 1e-3
MAX_AHEAD = 8
"""A rank that reads itself reads up to 8 micro-batches, or for 1 ms, at a time.

The step in between empties the processor's caches: one at a time takes twice as long.
"""


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
    ranks: int
    """The number of ranks, which share the batch out."""
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
    def samples(self) -> int | None:
        """Return the number of samples of the data."""
        return len(self.data)

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
        unloaded = replace(self)  # a loader that is reached from its own items is never freed
        return self._loader.load(unloaded.draws(epoch, skip))

    @cached_property
    def _loader(self) -> Loader:
        """Return one loader for all epochs, so that its processes persist."""
        return Loader(self.data, self.workers, self.pin_memory, persistent=True)

    def draws(self, epoch: int, skip: int) -> Iterator[Draw]:
        """Yield the draw of each micro-batch of this rank, in the order of (seed, epoch).

        `skip`: number of samples over all ranks to leave out at the beginning.
        """
        generator = torch.Generator().manual_seed(self.seed * 1_000_003 + epoch)
        number_type = torch.int32 if len(self.data) < 2**31 else torch.int64  # half the memory
        order = torch.randperm(len(self.data), generator=generator, dtype=number_type)
        parts = self.ranks * self.accumulation_steps
        mine = range(self.rank * self.accumulation_steps, (self.rank + 1) * self.accumulation_steps)
        places = [(self.batch_size * p // parts, self.batch_size * (p + 1) // parts) for p in mine]
        for first in range(skip, self.samples_per_epoch, self.batch_size):
            for begin, end in places:
                yield Draw(epoch, order[first + begin : first + end].tolist())


class _Sampler:
    """The items that a data loader asks for next; its own attribute cannot be set twice."""

    def __init__(self) -> None:
        self.items: Iterable[Any] = ()

    def __iter__(self) -> Iterator[Any]:
        return iter(self.items)


class Loader:
    """Reads items of `data` in order: in this process, or ahead of it in others.

    `workers`: number of processes; 0 reads in this process. `persistent`: they outlive a `load`.
    `ahead`: this process, too, may read more than it has yielded.
    """

    def __init__(
        self,
        data: Any,
        workers: int,
        pin_memory: bool,
        *,
        persistent: bool = False,
        ahead: bool = True,
    ) -> None:
        self.data = data
        self.pin_memory = pin_memory
        self._max_ahead = MAX_AHEAD if ahead else 1
        self._processes: DataLoader[Any] | None = None

        if workers:
            self._sampler = _Sampler()
            self._processes = DataLoader(
                data,
                sampler=self._sampler,
                batch_size=None,  # each item is a batch already
                num_workers=workers,
                pin_memory=pin_memory,
                persistent_workers=persistent,
                worker_init_fn=partial(_begin_process, os.getpid()),
                # The default draws a seed from the global generator per iterator, and a resumed
                # run creates one more iterator.
                generator=torch.Generator(),
            )

    def load(self, items: Iterable[Any]) -> Iterator[Any]:
        """Yield `data[item]` of each item, in order. Another call ends the one before."""
        if self._processes is None:
            return self._read(iter(items))

        self._sampler.items = items
        return iter(self._processes)

    def _read(self, items: Iterator[Any]) -> Iterator[Any]:
        """Read a few items at a time. An error is raised after the items before it."""
        error: Exception | None = None

        while error is None:
            batches: list[Any] = []
            end = time.perf_counter() + AHEAD_SECONDS

            with restored_generators():
                try:
                    for item in itertools.islice(items, self._max_ahead):
                        batches.append(self._pinned(self.data[item]))
                        if time.perf_counter() > end:
                            break
                except Exception as raised:  # noqa: BLE001  (raised below)
                    error = raised

            if not batches and error is None:
                return

            while batches:
                yield batches.pop(0)

        raise error

    def _pinned(self, batch: Any) -> Any:
        if not self.pin_memory:
            return batch

        return map_tensors(_pinned, batch)


def _pinned(tensor: Tensor) -> Tensor:
    # a user's data may be on the GPU
    if not tensor.is_cpu:
        return tensor

    return tensor.pin_memory()


def _begin_process(rank_pid: int, _: int) -> None:
    """End this loader process with its rank only, however the rank ends.

    A stop signals the whole process group, and the rank needs data until all ranks stop together.
    """
    os.setpgid(0, 0)
    if os.getppid() == rank_pid:  # not under a fork server
        set_parent_death_signal(rank_pid)


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


def gains_from_processes(data: Data, samples: int) -> bool:
    """Return whether other processes should read micro-batches of this many samples.

    They should not if the rank reads one in `HANDOVER_SECONDS`, nor if the data holds a handle or
    is on a GPU.
    """
    if open_handles(data):
        return False

    count = min(samples, TRIAL_SAMPLES, len(data))

    with forget_new_handles(data), restored_generators():
        data[Draw(0, [0])]  # it may open files and import libraries
        for first in (1, 1 + count, 1 + 2 * count):
            begun = time.perf_counter()
            batch = data[Draw(0, [(first + number) % len(data) for number in range(count)])]
            seconds = time.perf_counter() - begun
            if seconds * samples / count < HANDOVER_SECONDS:
                return False
            if seconds > 100 * HANDOVER_SECONDS:  # slow without doubt
                break

    return not any(tensor.is_cuda for tensor in tensors(batch))


def open_handles(data: Any) -> list[tuple[dict[str, Any], str]]:
    """Return (attributes of the data or of data that it wraps, name) of each handle.

    Files, archives, connections, generators and pools of threads can. Processes must not share
    them: each would move the position that the others read from.
    """
    handles = []
    for attributes in _attributes(data):
        for name, value in attributes.items():
            if callable(getattr(value, "close", getattr(value, "shutdown", None))):
                handles.append((attributes, name))

    return handles


@contextmanager
def forget_new_handles(data: Any) -> Iterator[None]:
    """Undo what opens a handle in this context: each process opens its own."""
    before = {id(attributes): dict(attributes) for attributes in _attributes(data)}

    try:
        yield
    finally:
        for attributes, name in open_handles(data):
            earlier = before.get(id(attributes), {})
            if name in earlier:
                attributes[name] = earlier[name]
            else:
                del attributes[name]


def _attributes(data: Any) -> Iterator[dict[str, Any]]:
    while data is not None:
        attributes: dict[str, Any] = getattr(data, "__dict__", {})
        yield attributes
        data = attributes.get("dataset")


def evaluation_draws(
    samples: int, rank: int, ranks: int, batch_size: int = MAX_EVALUATION_BATCH
) -> Iterator[tuple[Draw, int]]:
    """Yield (draw, number of samples that count): over all ranks each counts once.

    All ranks get the same number of draws, since they look for a stop after each. A rank without
    samples left gets one that does not count. `batch_size`: maximum per rank.
    """
    for first in range(0, samples, batch_size * ranks):
        batch = list(range(first, min(first + batch_size * ranks, samples)))
        mine = split_evenly(batch, ranks, rank)
        yield Draw(0, mine or [0]), len(mine)


def split_evenly(samples: list[Any], parts: int, part: int) -> list[Any]:
    """Return part number `part` (from 0) of `parts` consecutive parts of about equal size.

    Sizes differ by at most one; a part may be empty.
    """
    return samples[len(samples) * part // parts : len(samples) * (part + 1) // parts]
