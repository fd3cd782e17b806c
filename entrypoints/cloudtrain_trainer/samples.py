"""An ordinary `torch.utils.data.Dataset`, which gives one sample at a time, as the data of a task.

Task = model + loss + data: whoever returns a task of one's own (`--model module:factory`) may give it such data sets as
they are; `adapted` is called for them.
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
    """Batches of what a data set of samples holds: `dataset[index]` is an input and its target.

    `collate` makes a pair of tensors, inputs (n, ...) and targets (n, ...), out of a list of samples; torch's default
    stacks each. While a sample is made, the generators of torch, numpy and python are seeded with (seed, epoch, index):
    random crops and the like are other ones in each epoch, and the same on any number of ranks and loader processes,
    and after a resume.
    """

    def __init__(
        self,
        dataset: Dataset[Any] | Sequence[Any],
        seed: int = 0,
        collate: Callable[[list[Any]], Any] = default_collate,
    ) -> None:
        self.dataset, self.seed, self.collate = dataset, seed, collate

    def __len__(self) -> int:
        return len(self.dataset)  # type: ignore[arg-type]  # asked for in `adapted`

    def __getitem__(self, draw: Draw) -> tuple[Tensor, Tensor]:
        with _generators_kept():
            inputs, targets = self.collate([self._sample(draw.epoch, index) for index in draw.indices])
        return inputs, targets

    def _sample(self, epoch: int, index: int) -> Any:
        number = zlib.crc32(f"{self.seed} {epoch} {index}".encode())
        torch.default_generator.manual_seed(number)
        np.random.seed(number)
        random.seed(number)
        return self.dataset[index]


def adapted(data: Any, seed: int, what: str) -> Data:
    """`data` as a task needs it: itself if it takes a `Draw`. Raises `Refused`, with `what` for its name."""
    if isinstance(data, IterableDataset):
        raise Refused(
            f"{what} is an IterableDataset, which has no samples to choose from: give a data set with __getitem__ and "
            "__len__, so that ranks can share out each batch and a resume finds its place"
        )
    if not isinstance(data, (Dataset, list, tuple)) or _takes_draws(data):
        return data  # type: ignore[no-any-return]
    try:
        empty = not len(data)  # type: ignore[arg-type]
    except TypeError:
        raise Refused(f"{what}: a {type(data).__name__} has no __len__: every epoch needs to know its size") from None
    if empty:
        raise Refused(f"{what}: the {type(data).__name__} is empty")
    samples = Samples(data, seed)
    with _generators_kept():
        sample = samples._sample(0, 0)
    if not _is_pair(sample):
        raise Refused(
            f"{what}: a sample of the {type(data).__name__} is {_told(sample)}, and not an input and its target as "
            "tensors, arrays or numbers: return such a pair, or Samples(dataset, seed, collate=...) of "
            "cloudtrain_trainer.samples"
        )
    return samples


def _is_pair(sample: Any) -> bool:
    """Whether torch makes two tensors of it."""
    try:
        found = default_collate([sample])
    except (TypeError, RuntimeError):
        return False
    return isinstance(found, (list, tuple)) and len(found) == 2 and all(isinstance(part, Tensor) for part in found)


def _takes_draws(data: Any) -> bool:
    """Whether it was written for this trainer: its `__getitem__` says so by its argument."""
    try:
        first = next(iter(inspect.signature(data.__getitem__).parameters.values()))
    except (StopIteration, TypeError, ValueError):  # some written in C tell nothing
        return False
    return first.name == "draw" or "Draw" in str(first.annotation)


@contextmanager
def _generators_kept() -> Iterator[None]:
    """What is drawn for a sample is not drawn from the noise of training."""
    before = torch.get_rng_state(), np.random.get_state(), random.getstate()
    try:
        yield
    finally:
        torch.set_rng_state(before[0])
        np.random.set_state(before[1])
        random.setstate(before[2])


def _told(sample: Any) -> str:
    kind = type(sample).__name__
    if not isinstance(sample, (dict, list, tuple)):
        return f"a {kind}"
    parts = sample.values() if isinstance(sample, dict) else sample
    return f"a {kind} of {', '.join(type(part).__name__ for part in parts) or 'nothing'}"
