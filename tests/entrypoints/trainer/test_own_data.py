"""Data sets of users: read in batches, by loader processes if that pays, with seeded noise."""

from __future__ import annotations

import os
import random
import select
import signal
import tracemalloc
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from io import BytesIO
from multiprocessing import get_context
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils.data import Dataset, Subset, TensorDataset, default_collate

from cloudtrain_trainer.data.batches import (
    Batches,
    Loader,
    evaluation_draws,
    gains_from_processes,
    loader_processes,
)
from cloudtrain_trainer.data.samples import Samples
from cloudtrain_trainer.data.streams import adapt
from cloudtrain_trainer.tasks import Draw, digits
from cloudtrain_trainer.training.loop import Loop
from tests.support.waiting import HANG_SECONDS


class NoisyData(Dataset[tuple[Tensor, int]]):
    """Each sample is its index, and noise from all three random generators."""

    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        noise = torch.cat([torch.rand(1), torch.tensor([np.random.random(), random.random()])])
        return torch.cat([torch.tensor([float(index)]), noise]), index % 3


class NoisyBatches:
    """The same, a batch at a time."""

    def __len__(self) -> int:
        return 12

    def __getitem__(self, draw: Draw) -> Any:
        return default_collate([NoisyData()[index] for index in draw.indices])


def noise_of(
    dataset: Any, seed: int = 0, epoch: int = 0, workers: int = 0, skip: int = 0
) -> dict[int, list[float]]:
    """Return the noise of each sample, in the order of training."""
    data = adapt(dataset(), seed, "train")
    batches = Batches(data, 0, 4, 1, 0, 1, workers, pin_memory=False)
    torch.manual_seed(workers), np.random.seed(workers), random.seed(workers)
    rows = [row for inputs, _ in batches.load(epoch, skip) for row in inputs]
    return {int(row[0]): row[1:].tolist() for row in rows}


@pytest.mark.parametrize("dataset", [NoisyData, NoisyBatches])
def test_augmentation_depends_on_seed_epoch_and_batch_only(dataset: Any) -> None:
    load = partial(noise_of, dataset)
    samples = load()
    assert len(samples) == 12
    assert len({number for noise in samples.values() for number in noise}) == 36
    assert list(load(workers=2).items()) == list(samples.items())
    assert list(load(workers=1, skip=4).items()) == list(samples.items())[4:]
    for other in (load(epoch=1), load(seed=1)):
        assert all(other[index] != samples[index] for index in samples)


def test_creating_samples_does_not_change_the_random_generators_of_training() -> None:
    data = adapt(NoisyData(), 0, "train")
    torch.manual_seed(1), np.random.seed(1), random.seed(1)
    expected = torch.rand(1), np.random.random(), random.random()
    torch.manual_seed(1), np.random.seed(1), random.seed(1)
    next(Loader(data, 0, pin_memory=False).load([Draw(0, [1, 2])]))
    assert (torch.rand(1), np.random.random(), random.random()) == expected


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [(0.0, [0, 1, 2]), (1.0, [0])],
    ids=["fast data is read ahead", "slow data one at a time"],
)
def test_a_rank_reads_a_few_batches_at_a_time(
    seconds: float, expected: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[int] = []

    class Broken:
        def __getitem__(self, item: int) -> int:
            clock[0] += seconds
            read.append(item)
            return 6 // (2 - item)

    with clock_of_reads(monkeypatch) as clock:
        batches = Loader(Broken(), 0, pin_memory=False).load(range(9))
        assert next(batches) == 3
        assert read == expected

        assert next(batches) == 6
        with pytest.raises(ZeroDivisionError):
            next(batches)


def test_a_batch_that_was_read_ahead_is_freed_after_its_step() -> None:
    batches = Loader(NoisyBatches(), 0, pin_memory=False).load([Draw(0, [0])] * 3)
    first = weakref.ref(next(batches)[0])
    next(batches)
    assert first() is None


def test_data_on_a_gpu_is_not_pinned() -> None:
    on_device = torch.zeros(2, device="meta")
    assert list(Loader([on_device], 0, pin_memory=True).load([0])) == [on_device]


class ReadInBatches(Dataset[int]):
    """Has torch's method for batched reads."""

    def __len__(self) -> int:
        return 9

    def __getitem__(self, index: int) -> int:
        raise AssertionError("read one by one")

    def __getitems__(self, indices: list[int]) -> list[tuple[Tensor, int]]:
        return [(ROWS[index], index) for index in indices]


ROWS = torch.randn(9, 4, generator=torch.Generator().manual_seed(0))
IN_MEMORY = TensorDataset(ROWS, torch.arange(9))


@pytest.mark.parametrize(
    ("dataset", "expected"),
    [
        (ReadInBatches(), [5, 0, 3]),
        (IN_MEMORY, [5, 0, 3]),
        (Subset(Subset(IN_MEMORY, range(8, 0, -1)), [*range(6)]), [3, 8, 5]),
    ],
    ids=["__getitems__", "TensorDataset", "Subset"],
)
def test_a_batch_is_read_at_once(
    dataset: Any, expected: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(TensorDataset, "__getitem__", ReadInBatches.__getitem__)
    inputs, targets = Samples(dataset)[Draw(0, [5, 0, 3])]
    assert torch.equal(inputs, ROWS[expected])
    assert targets.tolist() == expected


class Slow(Dataset[Tensor]):
    """Reading a sample takes seconds, by the clock of the test; the first one opens a file."""

    def __init__(self, clock: list[float], seconds: float) -> None:
        self.clock = clock
        self.seconds = seconds
        self.file: Any = None

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> Tensor:
        self.clock[0] += self.seconds
        self.file = self.file or BytesIO()
        return ROWS[index]


@contextmanager
def clock_of_reads(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[float]]:
    now = [0.0]
    with monkeypatch.context() as patch:
        patch.setattr("cloudtrain_trainer.data.batches.time.perf_counter", lambda: now[0])
        yield now


@pytest.mark.parametrize(("seconds", "gains"), [(20e-6, False), (50e-6, True), (5.0, True)])
def test_processes_read_what_takes_longer_than_a_handover(
    seconds: float, gains: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    with clock_of_reads(monkeypatch) as now:
        data = adapt(Slow(now, seconds), 0, "train")
        assert gains_from_processes(data, samples=32) is gains


def test_data_with_an_open_file_is_read_by_the_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that a trial opens is forgotten: each loader process opens its own."""
    with clock_of_reads(monkeypatch) as now:
        dataset = Slow(now, 5.0)
        data = adapt(Subset(dataset, [0, 1]), 0, "train")
        assert dataset.file is None
        assert gains_from_processes(data, samples=32)
        assert dataset.file is None
        dataset[0]
        assert not gains_from_processes(data, samples=32)


@pytest.mark.parametrize(
    ("flags", "seconds", "expected"), [("", 1.0, 3), ("", 0.0, 0), ("--workers=2", 0.0, 2)]
)
def test_data_of_a_user_is_read_by_processes_if_that_pays(
    flags: str,
    seconds: float,
    expected: int,
    make_loop: Callable[..., Loop],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("cloudtrain_trainer.training.run.available_cores", lambda: 4)
    with clock_of_reads(monkeypatch) as now:
        task = task_of(Slow(now, seconds))
        assert make_loop(*flags.split(), task=task).workers == expected


def task_of(data: Any) -> Any:
    from torch import nn

    from cloudtrain_trainer.own_task import complete
    from cloudtrain_trainer.tasks import Task

    return complete(Task(model=lambda: nn.Linear(4, 1), train=data, batch_size=2), 0, "task")


class Stuck:
    """A sample that never comes; says first which process waits for it."""

    def __init__(self, pipe: int) -> None:
        self.pipe = pipe

    def __getitem__(self, item: int) -> None:
        os.write(self.pipe, b"reads")
        signal.pause()


def test_a_loader_process_ends_with_its_rank() -> None:
    """The pipe ends when the last process that can write to it has ended."""
    reading, writing = os.pipe()

    def rank() -> None:
        os.close(reading)
        next(Loader(Stuck(writing), 1, pin_memory=False).load([0]))

    process = get_context("fork").Process(target=rank)
    process.start()
    os.close(writing)
    try:
        assert os.read(reading, 5) == b"reads"
        process.kill()
        assert select.select([reading], [], [], HANG_SECONDS)[0], "a loader process is left"
        assert os.read(reading, 5) == b""
    finally:
        process.kill()
        process.join()
        os.close(reading)


def test_a_process_that_returns_does_not_wait_for_its_loader() -> None:
    """Python ends the processes that are left by SIGTERM, and waits for them."""
    loader = Loader(range(3), 1, pin_memory=False, persistent=True)

    def train() -> None:
        assert next(loader.load(range(3))) == 0

    process = get_context("fork").Process(target=train)
    process.start()
    process.join(HANG_SECONDS)
    try:
        assert process.exitcode == 0
    finally:
        process.kill()
        process.join()


def batches(rank: int = 0, ranks: int = 1, accumulate: int = 1, batch_size: int = 64) -> Batches:
    data = digits.build(0).train
    return Batches(data, 0, batch_size, accumulate, rank, ranks, workers=0, pin_memory=False)


@pytest.mark.parametrize(("ranks", "accumulate"), [(1, 1), (2, 1), (3, 1), (2, 3), (5, 2)])
def test_the_global_batches_are_the_same_on_any_number_of_ranks(
    ranks: int, accumulate: int
) -> None:
    one_rank = [draw.indices for draw in batches().draws(epoch=1, skip=128)]
    by_rank = [
        list(batches(rank, ranks, accumulate).draws(epoch=1, skip=128)) for rank in range(ranks)
    ]
    for step, batch in enumerate(one_rank):
        shares = [
            mine[step * accumulate + number].indices
            for mine in by_rank
            for number in range(accumulate)
        ]
        assert [i for share in shares for i in share] == batch
        assert max(map(len, shares)) - min(map(len, shares)) <= 1


def test_every_epoch_has_another_order_and_uses_no_sample_twice() -> None:
    first, second = ([i for d in batches().draws(e, 0) for i in d.indices] for e in (0, 1))
    assert first != second
    assert len(set(first)) == len(first) == batches().samples_per_epoch == 22 * 64


def test_an_epoch_begins_without_a_list_of_its_samples() -> None:
    data = Samples(range(1 << 21))
    tracemalloc.start()
    try:
        draw = next(Batches(data, 0, 64, 1, 0, 1, workers=0, pin_memory=False).draws(0, 0))
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()
    assert len(set(draw.indices)) == 64


@pytest.mark.parametrize("samples", [1, 7, 256, 360, 1000])
@pytest.mark.parametrize("ranks", [1, 2, 3, 8])
def test_evaluation_counts_each_sample_once_with_equally_many_batches_per_rank(
    samples: int, ranks: int
) -> None:
    draws = [list(evaluation_draws(samples, rank, ranks)) for rank in range(ranks)]
    counted = [i for mine in draws for draw, count in mine for i in draw.indices[:count]]
    assert sorted(counted) == list(range(samples))
    assert len({len(mine) for mine in draws}) == 1
    assert all(draw.indices for mine in draws for draw, _ in mine)


@pytest.mark.parametrize(
    ("requested", "task", "cores", "ranks", "expected"),
    [
        (3, 0, 8, 2, 3),
        (None, 0, 8, 2, 0),
        (None, None, 8, 2, 3),
        (None, None, 2, 2, 0),
        (None, None, 96, 1, 16),
    ],
)
def test_loader_processes_use_the_idle_cores_by_default(
    requested: int | None, task: int | None, cores: int, ranks: int, expected: int
) -> None:
    assert loader_processes(requested, task, cores, ranks) == expected
