"""Iterables as training data: each global batch is read in order and split over the ranks.

A resume is exact. Optional methods of an iterable, by the names that torch, torchdata and Hugging
Face's datasets use: `__len__` (samples per epoch; without it `--max-steps` is needed), `state_dict`
and `load_state_dict` (the position, of the iterable or its iterator; without them a resume reads
the first samples again), `set_epoch(epoch)`, and `shard(num_shards, index)`: the part that one rank
reads; without it every rank reads all and takes its share.
"""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils.data import IterableDataset

from cloudtrain_trainer.data.batches import MAX_EVALUATION_BATCH, split_evenly
from cloudtrain_trainer.data.samples import (
    Samples,
    check_sample,
    refuse_wrong_kind,
    restored_generators,
    seed_sample,
    split_pair,
    stack,
    takes_draws,
)
from cloudtrain_trainer.factories import describe, place
from cloudtrain_trainer.rules import Refused, RefusedData
from cloudtrain_trainer.trees import map_tensors

PLAIN = (int, float, str, bytes, bool, type(None), torch.Tensor)
"""Types that a state may contain, also in lists and dicts: reading them runs no code."""


class Stream:
    """An iterable of samples. `name`: its name in messages. Otherwise as `Samples`."""

    def __init__(
        self, source: Any, seed: int, collate: Callable[[list[Any]], Any], whole: bool, name: str
    ) -> None:
        self.source = source
        self.seed = seed
        self.collate = collate
        self.whole = whole
        self.name = name
        self.start_state = source.state_dict() if hasattr(source, "state_dict") else None

    @property
    def length(self) -> int | None:
        """Number of samples per epoch; None if the iterable does not say."""
        try:
            return len(self.source)
        except (TypeError, NotImplementedError):
            return None

    @property
    def can_shard(self) -> bool:
        """True if each rank can read a separate part."""
        try:
            return {"num_shards", "index"} <= inspect.signature(self.source.shard).parameters.keys()
        except (AttributeError, TypeError, ValueError):
            return False

    def shard(self, ranks: int, rank: int) -> Stream:
        """Return one rank's part. Raise `Refused` if there are fewer shards than ranks."""
        shards = getattr(self.source, "num_shards", None)
        if isinstance(shards, int) and shards < ranks:
            raise Refused(
                f"{self.name}: {shards} shards cannot be shared out over {ranks} ranks: write more,"
                " smaller ones"
            )
        part = self.source.shard(num_shards=ranks, index=rank)
        return Stream(part, self.seed, self.collate, self.whole, self.name)

    def first(self) -> Any:
        """Return the first sample. Raise `Refused` if there is none."""
        with restored_generators():
            for sample in self.read(0):
                return sample
        raise Refused(
            f"{self.name}: the {type(self.source).__name__} ({place(self.source)}) yields no sample"
        )

    def read(self, epoch: int, state: Any = None) -> Iterator[Any]:
        """Return an iterator from the beginning of an epoch, or from a state of it."""
        if hasattr(self.source, "set_epoch"):
            self.source.set_epoch(epoch)
        position = self.start_state if state is None else state
        if position is not None and hasattr(self.source, "load_state_dict"):
            self.source.load_state_dict(position)

        iterator: Any = iter(self.source)
        if state is not None and not hasattr(self.source, "load_state_dict"):
            iterator.load_state_dict(state)
        samples: Iterator[Any] = iterator
        return samples

    def state(self, iterator: Any) -> Any:
        """Return the position of an iterator; None if neither it nor the iterable has any."""
        holder = next(
            (
                candidate
                for candidate in (iterator, self.source)
                if hasattr(candidate, "state_dict")
            ),
            None,
        )
        if holder is None:
            return None
        position = holder.state_dict()
        wrong = next(_not_plain(position), None)
        if wrong is not None:
            raise Refused(
                f"{place(holder.state_dict)}: state_dict contains {describe(wrong)}: use numbers,"
                " text, tensors, lists and dicts"
            )
        return position

    def batch(self, samples: list[Any]) -> tuple[Any, Any]:
        """Return (inputs, targets) of some samples, or (the whole batch, None)."""
        return split_pair(self.collate(samples), self.whole)


class StreamBatches:
    """One rank's training data from an iterable; the interface of `Batches`.

    `max_steps`: of the run. Raise `Refused` if an epoch is endless, or less than one batch.
    """

    def __init__(
        self,
        data: Stream,
        seed: int,
        batch_size: int,
        accumulation_steps: int,
        rank: int,
        ranks: int,
        workers: int,
        pin_memory: bool,
        max_steps: int | None = None,
    ) -> None:
        self.data = data
        self.seed = seed
        self.batch_size = batch_size
        self.accumulation_steps = accumulation_steps
        self.rank = rank
        self.ranks = ranks
        self.pin_memory = pin_memory
        self.sharded = data.can_shard and ranks > 1
        self._part = data.shard(ranks, rank) if self.sharded else data

        # Parts differ in size: they are repeated instead.
        self._length = None if data.can_shard else data.length

        self._iterator: Iterator[Any] = iter(())
        self._pass = 0
        self._read = 0
        self._resumed: dict[str, Any] | None = None

        if workers:
            raise Refused(
                f"{data.name} is an iterable, which each rank reads itself: leave out --workers"
            )
        if batch_size < ranks * accumulation_steps:
            raise Refused(
                f"--batch-size {batch_size} is too small: use at least {ranks * accumulation_steps}"
            )
        if self._length is None and max_steps is None:
            raise Refused(
                f"{data.name}: the {type(data.source).__name__} ({place(data.source)}) does not say"
                " how many samples an epoch has: give it __len__, or say where training ends with"
                " --max-steps"
            )
        if self._length is not None and self._length < batch_size:
            raise Refused(
                f"--batch-size {batch_size} is more than the {self._length} training samples: use"
                " less"
            )

        self.samples_per_epoch = (max_steps or 0) * batch_size
        if self._length is not None:
            self.samples_per_epoch = self._length // batch_size * batch_size

    def load(self, epoch: int, skip: int) -> Iterator[tuple[Any, Any]]:
        """Yield this rank's micro-batches of an epoch, on the CPU.

        `skip`: samples over all ranks that were trained on.
        """
        resumed = self._resumed
        self._resumed = None
        if skip and resumed is not None and resumed["state"] is not None:
            self._pass = resumed["pass"]
            self._read = resumed["read"]
            with restored_generators():
                self._iterator = self._part.read(self._pass, resumed["state"])
        else:
            self._pass = epoch
            self._read = 0
            with restored_generators():
                self._iterator = self._part.read(epoch)
            for first in range(0, skip, self.batch_size):
                self._next_batch(first)
        return self._micro_batches(skip)

    def state(self) -> dict[str, Any]:
        """Return the position after the latest micro-batch, for `resume`."""
        return {"pass": self._pass, "read": self._read, "state": self._part.state(self._iterator)}

    def resume(self, state: dict[str, Any]) -> None:
        """Make the next `load` continue from a `state` of this rank."""
        self._resumed = state

    def trial(self, samples: int) -> tuple[Any, Any]:
        """Return a micro-batch for a trial, which repeats the first sample."""
        return self.data.batch([self.data.first()] * samples)

    def _micro_batches(self, first: int) -> Iterator[tuple[Any, Any]]:
        for at in range(first, self.samples_per_epoch, self.batch_size):
            samples = self._next_batch(at)
            for part in range(self.accumulation_steps):
                inputs, targets = self.data.batch(
                    split_evenly(samples, self.accumulation_steps, part)
                )
                yield self._pinned(inputs), self._pinned(targets)

    def _next_batch(self, first: int) -> list[Any]:
        """Return this rank's samples of the next global batch."""
        mine = split_evenly(list(range(self.batch_size)), self.ranks, self.rank)
        with restored_generators():
            seed_sample(self.seed, self._pass, first)
            if self.sharded:
                return self._take(len(mine))
            return self._take(self.batch_size)[mine[0] : mine[-1] + 1]

    def _take(self, count: int) -> list[Any]:
        taken = list(itertools.islice(self._iterator, count))
        self._read += len(taken)
        while len(taken) < count:
            if self._length is not None:
                raise Refused(
                    f"{place(self.data.source)}: {self.data.name} says that it has {self._length}"
                    f" samples and ends after {self._read}: correct its __len__"
                )
            if not self._read:
                raise RefusedData(
                    f"{self.data.name}: rank {self.rank} of {self.ranks} has no sample: write more"
                    " shards"
                )
            self._pass = self._pass + 1
            self._read = 0
            self._iterator = self._part.read(self._pass)
            more = list(itertools.islice(self._iterator, count - len(taken)))
            self._read += len(more)
            taken += more
        return taken

    def _pinned(self, batch: Any) -> Any:
        return map_tensors(torch.Tensor.pin_memory, batch) if self.pin_memory else batch


def evaluation_batches(
    data: Stream, rank: int, ranks: int, batch_size: int = MAX_EVALUATION_BATCH
) -> Iterator[tuple[tuple[Any, Any], int]]:
    """Yield ((inputs, targets), number of samples that count).

    As `evaluation_draws`; every rank reads all samples.
    """
    with restored_generators():
        seed_sample(data.seed, 0, 0)
        iterator = data.read(0)
    while True:
        with restored_generators():
            samples = list(itertools.islice(iterator, batch_size * ranks))
            if not samples:
                return
            mine = split_evenly(samples, ranks, rank)
            batch = data.batch(mine or samples[:1])
        yield batch, len(mine)


def _not_plain(value: Any) -> Iterator[Any]:
    if isinstance(value, dict):
        for key, item in value.items():
            yield from _not_plain(key)
            yield from _not_plain(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _not_plain(item)
    elif not isinstance(value, PLAIN):
        yield value


def adapt(
    data: Any,
    seed: int,
    name: str,
    collate: Callable[[list[Any]], Any] | None = None,
    whole: bool = False,
    pairs: bool = False,
) -> Any:
    """Return data as a task needs it: unchanged if it accepts a `Draw`, else `Samples` or a `Stream`.

    `name`: the data in messages. `whole`: keep pairs together, for a task with a step. `pairs`:
    refuse others. Raise `Refused` if the data is of an unknown kind or empty, or if its samples
    cannot become a batch.
    """
    refuse_wrong_kind(data, name)
    if isinstance(data, (Samples, Stream)) or takes_draws(data):
        return data
    if isinstance(data, IterableDataset) or not hasattr(data, "__getitem__"):
        stream = Stream(data, seed, collate or stack, whole, name)
        check_sample(stream.first(), data, stream.collate, name, whole, pairs)
        return stream
    try:
        empty = not len(data)
    except TypeError:
        raise Refused(
            f"{name}: a {type(data).__name__} has no __len__: an epoch needs to know its size"
        ) from None
    if empty:
        raise Refused(f"{name}: the {type(data).__name__} is empty")
    samples = Samples(data, seed, collate or stack, whole)
    with restored_generators():
        sample = samples._sample(0, 0)
        check_sample(sample, data, samples.collate, name, whole, pairs)
    return samples
