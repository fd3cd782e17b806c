"""Iterables as training data: each global batch is read in order and split over the ranks.

A resume is exact. Optional methods of an iterable, by the names that torch, torchdata and Hugging
Face's datasets use: `__len__` (samples per epoch; without it `--max-steps` is needed), `state_dict`
and `load_state_dict` (the position, of the iterable or its iterator; without them a resume reads
the first samples again), `set_epoch(epoch)`, and `shard(num_shards, index)`: the part that one reader
reads (stream_batches.py); without it every rank reads all and takes its share.
"""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils.data import IterableDataset

from cloudtrain_trainer.data.batches import MAX_EVALUATION_BATCH, forget_new_handles, split_evenly
from cloudtrain_trainer.data.samples import (
    DrawnSamples,
    Samples,
    check_sample,
    refuse_wrong_kind,
    restored_generators,
    seed_generators,
    split_pair,
    stack,
    takes_draws,
)
from cloudtrain_trainer.factories import describe, place
from cloudtrain_trainer.rules import Refused
from cloudtrain_trainer.tasks import Draw

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

    def shard(self, readers: int, index: int) -> Stream:
        """Return one reader's part. Raise `Refused` if there are fewer shards than readers."""
        shards = getattr(self.source, "num_shards", None)
        if isinstance(shards, int) and shards < readers:
            raise Refused(
                f"{self.name}: {shards} shards cannot be shared out over {readers} ranks or their"
                " --workers: write more, smaller ones"
            )

        part = self.source.shard(num_shards=readers, index=index)

        return Stream(part, self.seed, self.collate, self.whole, self.name)

    def first(self) -> Any:
        """Return the first sample. Raise `Refused` if there is none."""
        with restored_generators(), forget_new_handles(self.source):
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
        holder = iterator if hasattr(iterator, "state_dict") else self.source
        if not hasattr(holder, "state_dict"):
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


def first_batch(data: Any, samples: int) -> tuple[Any, Any]:
    """Return a batch of the first samples of training data, for a trial.

    They are repeated if there are fewer; of a stream the first one is.
    """
    if isinstance(data, Stream):
        return data.batch([data.first()] * samples)

    with restored_generators(), forget_new_handles(data):
        batch: tuple[Any, Any] = data[Draw(0, [index % len(data) for index in range(samples)])]
        return batch


def evaluation_batches(
    data: Stream, rank: int, ranks: int, batch_size: int = MAX_EVALUATION_BATCH
) -> Iterator[tuple[tuple[Any, Any], int]]:
    """Yield ((inputs, targets), number of samples that count).

    As `evaluation_draws`; every rank reads all samples.
    """
    with restored_generators():
        seed_generators(data.seed, 0, 0)
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
    """Return data as a task needs it: `Samples` or a `Stream`.

    `name`: the data in messages. `whole`: keep pairs together, for a task with a step. `pairs`:
    refuse others. Raise `Refused` if the data is of an unknown kind or empty, or if its samples
    cannot become a batch.
    """
    refuse_wrong_kind(data, name)
    if isinstance(data, (Samples, Stream)):
        return data
    if takes_draws(data):
        return DrawnSamples(data, seed)

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

    with restored_generators(), forget_new_handles(data):
        seed_generators(seed, 0, 0)
        (sample,) = samples.read([0])
        check_sample(sample, data, samples.collate, name, whole, pairs)

    return samples
