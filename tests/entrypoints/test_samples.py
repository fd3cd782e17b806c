"""An ordinary data set of torch as the data of a task, and the blocks of a model that nobody has described."""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from torch import Tensor, nn
from torch.utils.data import Dataset, IterableDataset, TensorDataset

from cloudtrain_trainer.batches import Batches, loader
from cloudtrain_trainer.models import partition
from cloudtrain_trainer.rules import Refused
from cloudtrain_trainer.samples import Samples, adapt
from cloudtrain_trainer.tasks import Draw
from tests.entrypoints.groups import StartGroup
from tests.entrypoints.launching import exported

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "own-dataset"


class Noisy(Dataset[tuple[Tensor, int]]):
    """Each sample is its number, and noise of all three generators."""

    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        noise = torch.cat([torch.rand(1), torch.tensor([np.random.random(), random.random()])])
        return torch.cat([torch.tensor([float(index)]), noise]), index % 3


class Pixels(Dataset[Any]):
    """Its samples are what the test asks for."""

    def __init__(self, sample: Any) -> None:
        self.sample = sample

    def __len__(self) -> int:
        return 3

    def __getitem__(self, index: int) -> Any:
        return self.sample


class Endless(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(3))


class Sizeless(Dataset[int]):
    def __getitem__(self, index: int) -> int:
        return index


class SavedCheckpoint(Dataset[Any]):
    """For this trainer, though it is one of torch's."""

    def __len__(self) -> int:
        return 2

    def __getitem__(self, draw: Draw) -> tuple[Tensor, Tensor]:
        return torch.tensor(draw.indices), torch.tensor(draw.indices)


def test_batches_are_stacked_from_samples() -> None:
    data = adapt(TensorDataset(torch.arange(10.0).reshape(5, 2), torch.arange(5)), 0, "train")
    inputs, targets = data[Draw(0, [3, 1])]
    assert (inputs.tolist(), targets.tolist(), len(data)) == ([[6.0, 7.0], [2.0, 3.0]], [3, 1], 5)


def test_a_list_of_pairs_will_do() -> None:
    inputs, targets = adapt([(torch.ones(2), 1), (torch.zeros(2), 0)], 0, "train")[Draw(0, [1])]
    assert (inputs.tolist(), targets.tolist()) == ([[0.0, 0.0]], [0])


def test_noise_depends_on_seed_epoch_and_index_alone() -> None:
    def seen(seed: int, epoch: int, ranks: int, workers: int) -> dict[int, list[float]]:
        found: dict[int, list[float]] = {}
        for rank in range(ranks):
            batches = Batches(adapt(Noisy(), seed, "train"), 0, 4, 1, rank, ranks, workers, pin_memory=False)
            torch.manual_seed(rank), np.random.seed(rank), random.seed(rank)
            for inputs, _ in batches.load(epoch, skip=0):
                found |= {int(row[0]): row[1:].tolist() for row in inputs}
        return dict(sorted(found.items()))

    one = seen(0, 0, ranks=1, workers=0)
    assert len(one) == 12
    assert len({number for noise in one.values() for number in noise}) == 36
    assert seen(0, 0, ranks=2, workers=1) == one
    for other in (seen(0, 1, 1, 0), seen(1, 0, 1, 0)):
        assert all(other[index] != one[index] for index in one)


def test_the_noise_of_training_goes_on_as_if_no_sample_had_drawn_any() -> None:
    data = adapt(Noisy(), 0, "train")
    torch.manual_seed(1), np.random.seed(1), random.seed(1)
    wanted = torch.rand(1), np.random.random(), random.random()
    torch.manual_seed(1), np.random.seed(1), random.seed(1)
    next(iter(loader(data, [Draw(0, [1, 2])], 0, pin_memory=False)))
    assert (torch.rand(1), np.random.random(), random.random()) == wanted


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (Endless(), "train is an IterableDataset"),
        (Sizeless(), "a Sizeless has no __len__"),
        ([], "the list is empty"),
        (Pixels({"pixels": torch.ones(2), "label": 1}), "a dict of Tensor, int, not an .input, target. pair"),
        (Pixels(torch.ones(2)), "a sample of the Pixels is a Tensor"),
        (Pixels((object(), 1)), "a tuple of object, int"),
        (Pixels((1, 2, 3)), "a tuple of int, int, int"),
    ],
    ids=["iterable", "no-length", "empty", "dict", "no-pair", "no-tensor", "triple"],
)
def test_what_cannot_be_used_is_refused_in_words(data: Any, said: str) -> None:
    with pytest.raises(Refused, match=said):
        adapt(data, 0, "train")


def test_what_was_written_for_this_trainer_is_left_alone() -> None:
    own = SavedCheckpoint()
    assert adapt(own, 0, "train") is own
    wrapped = Samples(Pixels({"a": 1}), collate=lambda samples: (torch.ones(len(samples)), torch.ones(len(samples))))
    assert adapt(wrapped, 0, "train") is wrapped


def test_the_example_learns_from_its_own_data_set(tmp_path: Path, group: StartGroup) -> None:
    shutil.copy(EXAMPLE / "iris.py", tmp_path)
    args = yaml.safe_load((EXAMPLE / "job.yaml").read_text())["args"]
    ranks = group(1, " ".join(f"--{name}={value}" for name, value in args.items()))
    ranks.succeed()
    assert ranks.events("metrics")[-1]["values"]["val_accuracy"] >= 0.9
    assert exported(tmp_path / "cloudtrain-output/model")["0.weight"].shape == (32, 4)


class Block(nn.Module):
    def __init__(self, shared: nn.Parameter | None = None) -> None:
        super().__init__()
        self.inside, self.shared = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)), shared


def test_the_repeated_blocks_of_a_model_are_found() -> None:
    model = nn.Module()
    model.embedding, model.head = nn.Embedding(8, 4), nn.Linear(4, 8)
    model.layers = nn.ModuleList(Block() for _ in range(3))
    first, second, last = Block(), Block(), Block()
    model.groups = nn.Sequential(nn.Sequential(first, second), nn.Sequential(last, nn.ReLU(), nn.ReLU()))
    assert list(partition.repeated_blocks(model)) == [*model.layers, first, second, *last.inside]


def test_blocks_that_share_a_weight_are_not_cut_apart() -> None:
    model = nn.Module()
    model.tied = nn.Parameter(torch.ones(4))
    model.layers = nn.ModuleList([Block(model.tied), Block(), Block()])
    assert list(partition.repeated_blocks(model)) == list(model.layers)[1:]
    one = Block()
    assert partition.repeated_blocks(nn.ModuleList([one, one])) == [], "a module that is used twice"
