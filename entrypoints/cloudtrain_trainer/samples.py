"""Adapts an ordinary `torch.utils.data.Dataset`, which returns one sample at a time, to the `Data` of a task.

A user's task (`--model module:factory`) may contain such data sets as they are; `adapt` is called for them.
"""

from __future__ import annotations

import inspect
import random
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset, IterableDataset, default_collate

from cloudtrain_trainer.rules import Refused
from cloudtrain_trainer.tasks import Data, Draw


class Samples:
    """Batches of a data set whose items are (input, target) pairs.

    `collate` turns a list of samples into inputs (batch, ...) and targets (batch, ...); torch's default stacks them.
    While a sample is created, torch's, numpy's and Python's generators are seeded with (seed, epoch, index): random
    crops differ between epochs, and are the same on any number of ranks and loader processes, and after a resume.
    """

    def __init__(
        self,
        dataset: Dataset[Any] | Sequence[Any],
        seed: int = 0,
        collate: Callable[[list[Any]], Any] = default_collate,
    ) -> None:
        self.dataset, self.seed, self.collate = dataset, seed, collate

    def __len__(self) -> int:
        return len(self.dataset)  # type: ignore[arg-type]  # checked in `adapt`

    def __getitem__(self, draw: Draw) -> tuple[Tensor, Tensor]:
        """Inputs (batch, ...) and targets (batch, ...) of the draw's samples, as `collate` returns them."""
        with _restored_generators():
            inputs, targets = self.collate([self._sample(draw.epoch, index) for index in draw.indices])
        return inputs, targets

    def _sample(self, epoch: int, index: int) -> Any:
        number = zlib.crc32(f"{self.seed} {epoch} {index}".encode())
        torch.default_generator.manual_seed(number)
        np.random.seed(number)
        random.seed(number)
        return self.dataset[index]


def adapt(data: Any, seed: int, what: str) -> Data:
    """The data as a task needs it: unchanged if it accepts a `Draw`, else as `Samples`.

    `what`: its name in messages. Raises `Refused` if it has no length, is empty, or its samples are not pairs.
    """
    if isinstance(data, IterableDataset):
        raise Refused(
            f"{what} is an IterableDataset, whose samples have no index: return a data set with __getitem__ and "
            "__len__, so that each batch can be split over the ranks and a resume can skip what was seen"
        )
    if not isinstance(data, (Dataset, list, tuple)) or _takes_draws(data):
        return data  # type: ignore[no-any-return]
    try:
        empty = not len(data)  # type: ignore[arg-type]
    except TypeError:
        raise Refused(f"{what}: a {type(data).__name__} has no __len__: an epoch needs to know its size") from None
    if empty:
        raise Refused(f"{what}: the {type(data).__name__} is empty")
    samples = Samples(data, seed)
    with _restored_generators():
        sample = samples._sample(0, 0)
    if not _is_pair(sample):
        raise Refused(
            f"{what}: a sample of the {type(data).__name__} is {_describe(sample)}, not an (input, target) pair of "
            "tensors, arrays or numbers: return such a pair, or Samples(dataset, seed, collate=...) from "
            "cloudtrain_trainer.samples"
        )
    return samples


def _is_pair(sample: Any) -> bool:
    """Whether torch's default collate makes two tensors of it."""
    try:
        found = default_collate([sample])
    except (TypeError, RuntimeError):
        return False
    return isinstance(found, (list, tuple)) and len(found) == 2 and all(isinstance(part, Tensor) for part in found)


def _takes_draws(data: Any) -> bool:
    """Whether the data is written for this trainer: its `__getitem__` has an argument named `draw` or annotated
    `Draw`.
    """
    try:
        first = next(iter(inspect.signature(data.__getitem__).parameters.values()))
    except (StopIteration, TypeError, ValueError):  # some written in C have no signature
        return False
    return first.name == "draw" or "Draw" in str(first.annotation)


@contextmanager
def _restored_generators() -> Iterator[None]:
    """A context after which the generators are as before: samples do not change the noise of training."""
    before = torch.get_rng_state(), np.random.get_state(), random.getstate()
    try:
        yield
    finally:
        torch.set_rng_state(before[0])
        np.random.set_state(before[1])
        random.setstate(before[2])


def _describe(sample: Any) -> str:
    kind = type(sample).__name__
    if not isinstance(sample, (dict, list, tuple)):
        return f"a {kind}"
    parts = sample.values() if isinstance(sample, dict) else sample
    return f"a {kind} of {', '.join(type(part).__name__ for part in parts) or 'nothing'}"
