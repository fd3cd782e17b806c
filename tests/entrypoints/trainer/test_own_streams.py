"""Iterables as data: every sample once on any number of ranks, and a resume at the very sample."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import IterableDataset

from cloudtrain_trainer.data.stream_batches import StreamBatches
from cloudtrain_trainer.data.streams import adapt, evaluation_batches
from cloudtrain_trainer.own_task import complete
from cloudtrain_trainer.rules import Refused
from cloudtrain_trainer.tasks import Task
from tests.entrypoints.groups import StartGroup
from tests.entrypoints.trainer import own_code
from tests.entrypoints.trainer.launching import exported
from tests.entrypoints.trainer.rank_hooks import KILL

SAMPLES = 23


class Numbers(IterableDataset[Any]):
    """Each sample is its number and noise, and a target. `reads`: how many samples were read, over
    all copies.
    """

    reads = 0

    def __init__(self, samples: int = SAMPLES) -> None:
        self.samples = samples

    def __iter__(self) -> Iterator[Any]:
        for number in range(self.samples):
            type(self).reads += 1
            yield torch.tensor([float(number), random.random()]), torch.tensor([number / SAMPLES])


class Sized(Numbers):
    def __len__(self) -> int:
        return SAMPLES


class Stateful(Sized):
    """Remembers its position, as torchdata's protocol asks."""

    def __init__(self) -> None:
        super().__init__()
        self.at = 0

    def __iter__(self) -> Iterator[Any]:
        while self.at < SAMPLES:
            type(self).reads += 1
            self.at += 1
            yield (
                torch.tensor([float(self.at - 1), random.random()]),
                torch.tensor([self.at / SAMPLES]),
            )
        self.at = 0

    def state_dict(self) -> dict[str, Any]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.at = state["at"]


class Shards(Numbers):
    """Each rank reads every `of`-th number."""

    num_shards = 4

    def __init__(self, of: int = 1, index: int = 0) -> None:
        super().__init__()
        self.of = of
        self.index = index

    def shard(self, num_shards: int, index: int) -> Shards:
        return Shards(num_shards, index)

    def __iter__(self) -> Iterator[Any]:
        return (
            sample for sample in super().__iter__() if int(sample[0][0]) % self.of == self.index
        )


def batches(
    data: Any, rank: int = 0, ranks: int = 1, accumulate: int = 1, **options: Any
) -> StreamBatches:
    stream = adapt(data, 0, "train")
    options = {"workers": 0, "pin_memory": False, **options}
    return StreamBatches(stream, 4, accumulate, rank, ranks, **options)


def numbers(loaded: Iterator[Any]) -> list[int]:
    return [int(row[0]) for inputs, _ in loaded for row in inputs]


@pytest.mark.parametrize("kind", [Sized, Stateful])
@pytest.mark.parametrize(("ranks", "accumulate"), [(1, 1), (2, 1), (3, 1), (2, 2)])
def test_each_sample_is_used_once_in_an_epoch(
    kind: type[Numbers], ranks: int, accumulate: int
) -> None:
    of_ranks = [batches(kind(), rank, ranks, accumulate) for rank in range(ranks)]
    for epoch in (0, 1):
        assert sorted(n for stream in of_ranks for n in numbers(stream.load(epoch, 0))) == list(
            range(20)
        )


def test_noise_is_the_same_on_any_number_of_ranks() -> None:
    def noise(ranks: int) -> set[float]:
        loaded = [batches(Sized(), rank, ranks).load(1, 0) for rank in range(ranks)]
        return {float(row[1]) for loader in loaded for inputs, _ in loader for row in inputs}

    assert noise(1) == noise(2)
    assert len(noise(2)) == 20


@pytest.mark.parametrize(("kind", "reads"), [(Sized, 20), (Stateful, 12)])
def test_a_resume_continues_at_the_very_sample(kind: type[Numbers], reads: int) -> None:
    interrupted = batches(kind())
    loaded = interrupted.load(0, 0)
    first = [next(loaded), next(loaded)]
    state = interrupted.state()
    resumed = batches(kind())
    resumed.resume(state)
    whole = [inputs.tolist() for inputs, _ in batches(kind()).load(0, 0)]
    kind.reads = 0
    rest = resumed.load(0, 8)
    assert [inputs.tolist() for inputs, _ in [*first, *rest]] == whole, "with the same noise"
    assert kind.reads == reads, "what was seen is read again only without a state_dict"
    assert numbers(resumed.load(1, 0)) == list(range(20))


def test_a_stream_that_shards_itself_is_read_once_by_all_ranks_together() -> None:
    Shards.reads = 0
    of_ranks = [batches(Shards(), rank, 2, max_steps=6) for rank in range(2)]
    numbers_of_ranks = [numbers(stream.load(0, 0)) for stream in of_ranks]
    assert [len(rank_numbers) for rank_numbers in numbers_of_ranks] == [12, 12]
    assert sorted({*numbers_of_ranks[0], *numbers_of_ranks[1]}) == list(range(SAMPLES))
    assert numbers_of_ranks[0] == [n for n in range(SAMPLES) if n % 2 == 0]
    assert numbers_of_ranks[1] == [*(n for n in range(SAMPLES) if n % 2), 1], (
        "a part that has ended begins anew"
    )


def test_a_resume_of_a_part_that_began_anew_is_exact() -> None:
    whole = numbers(batches(Shards(), 1, 2, max_steps=9).load(0, 0))
    resumed = batches(Shards(), 1, 2, max_steps=9)
    assert numbers(resumed.load(0, 28)) == whole[14:]


@pytest.mark.parametrize("kind", [Sized, Stateful])
def test_a_loader_process_reads_as_the_rank_would(kind: type[Numbers]) -> None:
    by_rank = batches(kind())
    by_process = batches(kind(), workers=1)
    for epoch in (0, 1):
        expected = [inputs.tolist() for inputs, _ in by_rank.load(epoch, 0)]
        assert [inputs.tolist() for inputs, _ in by_process.load(epoch, 0)] == expected

    resumed = batches(kind(), workers=1)
    loaded = by_process.load(0, 0)
    next(loaded)
    resumed.resume(by_process.state())
    assert numbers(resumed.load(0, 4)) == numbers(loaded)


class ShardsWithPosition(Shards):
    """Continues after the last number that it gave."""

    def __init__(self, of: int = 1, index: int = 0) -> None:
        super().__init__(of, index)
        self.given = 0

    def shard(self, num_shards: int, index: int) -> Shards:
        return ShardsWithPosition(num_shards, index)

    def __iter__(self) -> Iterator[Any]:
        while self.given * self.of + self.index < SAMPLES:
            number = self.given * self.of + self.index
            self.given += 1
            yield torch.tensor([float(number), random.random()]), torch.tensor([0.0])
        self.given = 0

    def state_dict(self) -> dict[str, Any]:
        return {"given": self.given}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.given = state["given"]


@pytest.mark.parametrize("kind", [Shards, ShardsWithPosition])
def test_loader_processes_of_all_ranks_split_a_stream(kind: type[Shards]) -> None:
    of_ranks = [batches(kind(), rank, 2, max_steps=6, workers=2) for rank in range(2)]
    read = [numbers(stream.load(0, 0)) for stream in of_ranks]
    assert sorted({*read[0], *read[1]}) == list(range(SAMPLES))
    assert read[0][:4] == [0, 4, 1, 5], "the processes of a rank take turns"

    interrupted = of_ranks[1].load(0, 0)
    taken = [next(interrupted) for _ in range(3)]
    resumed = batches(kind(), 1, 2, max_steps=6, workers=2)
    resumed.resume(of_ranks[1].state())
    assert numbers(iter(taken)) + numbers(resumed.load(0, 12)) == read[1]
    with pytest.raises(Refused, match="use --workers 2"):
        batches(kind(), 1, 2, max_steps=6).resume(of_ranks[1].state())


@pytest.mark.parametrize(("samples", "ranks"), [(SAMPLES, 1), (SAMPLES, 2), (5, 3)])
def test_an_evaluation_counts_each_sample_once(samples: int, ranks: int) -> None:
    plans = [
        list(evaluation_batches(adapt(Numbers(samples), 0, "val"), rank, ranks, 4))
        for rank in range(ranks)
    ]
    counted = [
        int(row[0]) for plan in plans for (inputs, _), count in plan for row in inputs[:count]
    ]
    assert sorted(counted) == list(range(samples))
    assert len({len(plan) for plan in plans}) == 1, "all ranks call the model equally often"


class TooLong(Sized):
    def __iter__(self) -> Iterator[Any]:
        yield from list(super().__iter__())[:10]


class Short(Numbers):
    def __len__(self) -> int:
        return 3


class BadState(Stateful):
    def state_dict(self) -> dict[str, Any]:
        return {"at": object()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.at = 0


def test_mistakes_are_told_with_their_place() -> None:
    with pytest.raises(
        Refused, match=r"Numbers \(.*test_own_streams.py:\d+\) does not say .* with --max-steps"
    ):
        batches(Numbers())
    with pytest.raises(
        Refused,
        match=r"test_own_streams.py:\d+: train says that it has 23 samples and ends after 10",
    ):
        list(batches(TooLong()).load(0, 0))
    with pytest.raises(
        Refused, match=r"test_own_streams.py:\d+: state_dict contains an object: use numbers"
    ):
        batches(BadState()).state()
    with pytest.raises(Refused, match="4 shards cannot be shared out over 8 ranks"):
        batches(Shards(), 0, 2, max_steps=1, workers=4)
    with pytest.raises(Refused, match="cannot be read by 2 processes: give it shard"):
        batches(Sized(), workers=2)
    one = Sized()
    with pytest.raises(
        Refused, match="an iterable for both training and validation would lose its place"
    ):
        complete(Task(model=nn.Identity, train=one, validation=one), 0, "task")
    with pytest.raises(Refused, match="yields no sample"):
        batches(Numbers(0))
    with pytest.raises(Refused, match="--batch-size 4 is more than the 3 training samples"):
        batches(Short())


OWN = "tests.entrypoints.trainer.own_code"
STEPS = 15
FLAGS = (
    f"--optimizer {OWN}:optimizer --lr-schedule constant --warm-up 0 --max-steps {STEPS} --epochs 2"
)


@pytest.mark.once
@pytest.mark.parametrize(
    ("kind", "workers"), [("numbers", 1), ("shards", 2), ("forgetful", 0)], ids=str
)
def test_a_resume_after_a_kill_continues_at_the_very_sample(
    tmp_path: Path, group: StartGroup, kind: str, workers: int
) -> None:
    """An epoch has ten steps: the kill is in the first or in the second."""
    chance = random.Random(os.environ.get("SEED", kind))
    flags = f"--task {OWN}:{kind} {FLAGS} --checkpoint-every-steps 2 --workers {workers}"
    kill = f"{chance.randint(5, 13)} 0 {chance.randint(0, 1)}"
    killed = group(
        2, flags, before="tests.entrypoints.trainer.rank_hooks:kill_at_a_moment", **{KILL: kill}
    )
    assert any(killed.wait()), "it ended before it was killed"
    restarted = group(2, flags)
    assert restarted.succeed()["step"] == STEPS
    (resumed,) = restarted.events("resumed")
    assert 0 < resumed["step"] <= STEPS
    twice = set(range(STEPS * own_code.BATCH - own_code.SAMPLES))
    if workers == 2:  # a rank's processes take turns: one reads eight batches, the other seven
        twice = {number for number in range(own_code.SAMPLES) if number // 4 < (6, 4)[number % 2]}
    used = exported(tmp_path / "cloudtrain-output/model")["used"].tolist()
    assert used == [-2.0 if number in twice else -1.0 for number in range(own_code.SAMPLES)], (
        f"killed at {kill}, resumed at {resumed['step']}"
    )
