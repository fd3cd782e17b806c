"""Adapt ordinary data, one sample at a time, to the `Data` of a task.

`adapt` (streams.py) is called for the data of a user's task or of `--data`. Iterables become a
`Stream`.
"""

from __future__ import annotations

import inspect
import random
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from numbers import Number
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Subset, TensorDataset, default_collate

from cloudtrain_trainer.factories import describe, place
from cloudtrain_trainer.rules import Refused, RefusedData
from cloudtrain_trainer.tasks import Draw
from cloudtrain_trainer.trees import has_tensor

_NUMPY_OF_DATA = np.random.MT19937(0)


def stack(samples: list[Any]) -> Any:
    """Return a batch of samples by torch's default collate; lists of numbers become tensors."""
    try:
        if _has_list(samples[0]):
            return default_collate([_with_tensors(sample) for sample in samples])
        return default_collate(samples)
    except (RuntimeError, TypeError, KeyError) as error:
        descriptions = ", ".join(dict.fromkeys(describe(sample) for sample in samples[:3]))
        why = str(error).splitlines()[0]
        raise RefusedData(
            f"{len(samples)} samples ({descriptions}) cannot be stacked: {why}. Make them alike, for"
            " example pad them, or give a collate that makes a batch of a list of samples"
        ) from None


class Samples:
    """Batches of a data set. Pairs become inputs and targets; other batches are the input.

    `collate` turns a list of samples into a batch (batch, ...); the default stacks them. `whole`:
    keep pairs together. Before a batch is created, torch's, numpy's and Python's generators are
    seeded with (seed, epoch, index of its first sample): random crops differ between epochs, and
    are the same with any number of loader processes, and after a resume. Whoever reads in the
    process that trains restores them afterwards (`restored_generators`).
    """

    def __init__(
        self,
        dataset: Any,
        seed: int = 0,
        collate: Callable[[list[Any]], Any] = stack,
        whole: bool = False,
    ) -> None:
        self.dataset = dataset
        self.seed = seed
        self.collate = collate
        self.whole = whole

    def __len__(self) -> int:
        return len(self.dataset)  # checked in `adapt`

    def __getitem__(self, draw: Draw) -> tuple[Any, Any]:
        """Return inputs (batch, ...) and targets (batch, ...), or the whole batch and None."""
        batch = rows(self.dataset, draw.indices) if self.collate is stack else None
        if batch is None:
            seed_generators(self.seed, draw.epoch, draw.indices[0])
            batch = self.collate(self.read(draw.indices))

        return split_pair(batch, self.whole)

    def read(self, indices: list[int]) -> list[Any]:
        """Return the samples of these indices."""
        read = getattr(self.dataset, "__getitems__", None)  # torch's name for a batched read
        if read is not None:
            samples: list[Any] = read(indices)
            return samples

        return [self.dataset[index] for index in indices]


class DrawnSamples(Samples):
    """Data that reads a `Draw` itself. The generators are seeded all the same."""

    def __getitem__(self, draw: Draw) -> tuple[Any, Any]:
        seed_generators(self.seed, draw.epoch, draw.indices[0])
        batch: tuple[Any, Any] = self.dataset[draw]
        return batch


def rows(dataset: Any, indices: list[int]) -> list[Tensor] | None:
    """Return the rows of a TensorDataset, or of a Subset of one, as stacked; None for others."""
    while type(dataset) is Subset:
        indices = [int(dataset.indices[index]) for index in indices]
        dataset = dataset.dataset

    if type(dataset) is not TensorDataset:
        return None

    return [tensor[indices] for tensor in dataset.tensors]


def split_pair(batch: Any, whole: bool) -> tuple[Any, Any]:
    """Return (inputs, targets) of a batch that is a pair, else (the batch, None)."""
    is_pair = isinstance(batch, (list, tuple)) and len(batch) == 2 and not whole
    return (batch[0], batch[1]) if is_pair else (batch, None)


def seed_generators(seed: int, epoch: int, index: int) -> None:
    """Seed torch's, numpy's and Python's generators for the random parts of a batch.

    `index`: of its first sample.
    """
    number = zlib.crc32(f"{seed} {epoch} {index}".encode())
    torch.default_generator.manual_seed(number)
    np.random.seed(number)
    random.seed(number)


@contextmanager
def restored_generators() -> Iterator[None]:
    """Restore the generators afterwards: samples do not change training's noise."""
    before = torch.get_rng_state(), np.random.mtrand.get_bit_generator(), random.getstate()
    np.random.mtrand.set_bit_generator(_NUMPY_OF_DATA)  # 100 times as fast as reading numpy's state

    try:
        yield
    finally:
        torch.set_rng_state(before[0])
        np.random.mtrand.set_bit_generator(before[1])
        random.setstate(before[2])


def takes_draws(data: Any) -> bool:
    """Return whether `__getitem__` takes a `Draw`: the data is written for this trainer.

    The argument is named `draw` or annotated `Draw`.
    """
    try:
        first = next(iter(inspect.signature(data.__getitem__).parameters.values()))
    except (AttributeError, StopIteration, TypeError, ValueError):
        return False  # code in C may lack a signature

    return first.name == "draw" or "Draw" in str(first.annotation)


def refuse_wrong_kind(data: Any, name: str) -> None:
    hint = ""
    if isinstance(data, DataLoader):
        hint = (
            "return its data set: the trainer makes the batches itself (--batch-size is that of all"
            " ranks together)"
        )
    elif isinstance(data, (Tensor, np.ndarray)):
        hint = "return torch.utils.data.TensorDataset(inputs, targets)"
    elif inspect.isgenerator(data) or (hasattr(data, "__next__") and hasattr(data, "__iter__")):
        hint = (
            "it can be read only once; return an object whose __iter__ begins anew, for epochs and"
            " a resume"
        )
    elif isinstance(data, (str, bytes)) or not (
        hasattr(data, "__getitem__") or hasattr(data, "__iter__")
    ):
        hint = "return a data set with __getitem__ and __len__, or an iterable of samples"

    if hint:
        raise Refused(f"{name} is {describe(data)}: {hint}")


def check_sample(
    sample: Any, data: Any, collate: Callable[[list[Any]], Any], name: str, whole: bool, pairs: bool
) -> None:
    """Raise `Refused` if a sample cannot become a batch of the needed form."""
    subject = f"{name}: a sample of the {type(data).__name__} ({place(data)}) is {describe(sample)}"
    if collate is not stack:
        return

    try:
        batch = stack([sample])
    except RefusedData:
        raise Refused(f"{subject}, which cannot be stacked into a tensor: give a collate") from None

    if not has_tensor(batch):
        raise Refused(
            f"{subject}, without a tensor, array or number: return an (input, target) pair or a dict"
        )

    is_pair = split_pair(batch, whole)[1] is not None
    if pairs and not is_pair:
        raise Refused(f"{subject}: this task needs an (input, target) pair")

    if isinstance(batch, (list, tuple)) and not is_pair and not whole:
        raise Refused(
            f"{subject}: return an (input, target) pair, whose input may be a tuple or a dict, or a"
            " dict; or give the task a step"
        )


def _has_list(sample: Any) -> bool:
    if isinstance(sample, dict):
        sample = tuple(sample.values())
    is_plain = type(sample) in (tuple, list)
    return is_plain and any(isinstance(value, list) or _has_list(value) for value in sample)


def _with_tensors(sample: Any) -> Any:
    """Turn lists of numbers into tensors, since torch's collate would transpose them."""
    if isinstance(sample, dict):
        return {name: _part(value) for name, value in sample.items()}
    if type(sample) in (tuple, list):
        return tuple(_part(value) for value in sample)

    return sample


def _part(value: Any) -> Any:
    if _is_numbers(value):
        try:
            return torch.tensor(value)
        except ValueError:  # lists of different lengths
            return value

    return _with_tensors(value) if isinstance(value, dict) else value


def _is_numbers(value: Any) -> bool:
    """Return whether it is a list of numbers, nested or not, as Hugging Face's data has."""
    return (
        isinstance(value, list)
        and bool(value)
        and all(isinstance(one, Number) or _is_numbers(one) for one in value)
    )
