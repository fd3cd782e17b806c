"""A user's model, task and data set, and the blocks of a model that no task describes."""

from __future__ import annotations

import random
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from torch import Tensor, nn
from torch.utils.data import Dataset, IterableDataset, TensorDataset

from cloudtrain_trainer import tasks
from cloudtrain_trainer.batches import Batches, loader
from cloudtrain_trainer.models import partition
from cloudtrain_trainer.rules import Refused
from cloudtrain_trainer.samples import Samples, adapt
from cloudtrain_trainer.tasks import Draw, from_factory
from tests.entrypoints.groups import StartGroup
from tests.entrypoints.launching import exported


def parameters(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


@pytest.fixture
def user_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A module `own_model` and others in the current folder."""
    (tmp_path / "own_model.py").write_text(
        "from dataclasses import replace\n"
        "from torch import nn\n"
        "from cloudtrain_trainer import tasks\n"
        "def net(): return nn.Sequential(nn.Flatten(), nn.Linear(64, 10))\n"
        "def whole(seed): return replace(tasks.build('digits', seed), batch_size=7 + seed)\n"
        "def nothing(): pass\n"
        "number = 3\n"
    )
    (tmp_path / "broken_model.py").write_text("import not_installed_anywhere\n")
    for name in ("models", "tasks"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "net.py").write_text("from own_model import net\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield tmp_path
    for name in ("own_model", "broken_model", "models.net", "models", "tasks.net", "tasks"):
        sys.modules.pop(name, None)


def test_a_user_model_uses_the_data_and_loss_of_a_task(user_code: Path) -> None:
    base = tasks.build("digits", 0)
    task = from_factory.build("own_model:net", 0, base)
    assert (task.train, task.loss, task.batch_size) == (base.train, base.loss, base.batch_size)
    model, (inputs, targets) = task.model(), task.train[Draw(0, [1, 2])]
    assert parameters(model) == 650
    assert task.loss(task.call(model, inputs, True), targets) > 0
    assert (task.layers, task.stages, task.tensor_plan, task.flops) == (None, None, None, 0.0)


def test_a_user_task_gets_the_seed(user_code: Path) -> None:
    assert from_factory.build("own_model:whole", 5, None).batch_size == 12


@pytest.mark.parametrize("package", ["models", "tasks"])
def test_user_packages_may_have_the_names_of_the_trainers_modules(user_code: Path, package: str) -> None:
    assert parameters(from_factory.build(f"{package}.net:net", 0, tasks.build("digits", 0)).model()) == 650


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("own_model", "expected package.module:factory"),
        ("own-model:net", "expected package.module:factory"),
        ("no_model:net", "there is no module no_model in "),
        ("own_model.part:net", "there is no module own_model.part"),
        ("own_model:nope", r"own_model\.py has nothing named nope"),
        ("own_model:number", r"own_model\.py has no function named number"),
        ("own_model:nothing", "it returned nothing; add the --task"),
        ("own_model:net", "it returned a Sequential; add the --task"),
    ],
)
def test_a_factory_that_does_not_return_a_task_is_refused(user_code: Path, spec: str, message: str) -> None:
    with pytest.raises(Refused, match=message):
        from_factory.build(spec, 0, None)


@pytest.mark.parametrize(
    ("name", "message"), [("whole", "a Task; leave out --task"), ("nothing", "return an nn.Module")]
)
def test_a_factory_that_does_not_return_a_model_is_refused(user_code: Path, name: str, message: str) -> None:
    task = from_factory.build(f"own_model:{name}", 0, tasks.build("digits", 0))
    with pytest.raises(Refused, match=message):
        task.model()


def test_a_failed_import_in_user_code_keeps_its_own_error(user_code: Path) -> None:
    with pytest.raises(ModuleNotFoundError, match="not_installed_anywhere"):
        from_factory.build("broken_model:net", 0, None)


EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "own-dataset"


class NoisyData(Dataset[tuple[Tensor, int]]):
    """Each sample is its index, and noise from all three random generators."""

    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        noise = torch.cat([torch.rand(1), torch.tensor([np.random.random(), random.random()])])
        return torch.cat([torch.tensor([float(index)]), noise]), index % 3


class ConstantData(Dataset[Any]):
    """All samples are the same value."""

    def __init__(self, sample: Any) -> None:
        self.sample = sample

    def __len__(self) -> int:
        return 3

    def __getitem__(self, index: int) -> Any:
        return self.sample


class StreamedData(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(3))


class DataWithoutLength(Dataset[int]):
    def __getitem__(self, index: int) -> int:
        return index


class TrainerData(Dataset[Any]):
    """A torch data set that accepts a `Draw`."""

    def __len__(self) -> int:
        return 2

    def __getitem__(self, draw: Draw) -> tuple[Tensor, Tensor]:
        return torch.tensor(draw.indices), torch.tensor(draw.indices)


def test_batches_are_stacked_from_samples() -> None:
    data = adapt(TensorDataset(torch.arange(10.0).reshape(5, 2), torch.arange(5)), 0, "train")
    inputs, targets = data[Draw(0, [3, 1])]
    assert (inputs.tolist(), targets.tolist(), len(data)) == ([[6.0, 7.0], [2.0, 3.0]], [3, 1], 5)


def test_a_list_of_pairs_is_a_data_set() -> None:
    inputs, targets = adapt([(torch.ones(2), 1), (torch.zeros(2), 0)], 0, "train")[Draw(0, [1])]
    assert (inputs.tolist(), targets.tolist()) == ([[0.0, 0.0]], [0])


def test_augmentation_depends_on_seed_epoch_and_index_only() -> None:
    def seen(seed: int, epoch: int, ranks: int, workers: int) -> dict[int, list[float]]:
        found: dict[int, list[float]] = {}
        for rank in range(ranks):
            batches = Batches(adapt(NoisyData(), seed, "train"), 0, 4, 1, rank, ranks, workers, pin_memory=False)
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


def test_creating_samples_does_not_change_the_random_generators_of_training() -> None:
    data = adapt(NoisyData(), 0, "train")
    torch.manual_seed(1), np.random.seed(1), random.seed(1)
    expected = torch.rand(1), np.random.random(), random.random()
    torch.manual_seed(1), np.random.seed(1), random.seed(1)
    next(iter(loader(data, [Draw(0, [1, 2])], 0, pin_memory=False)))
    assert (torch.rand(1), np.random.random(), random.random()) == expected


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (StreamedData(), "train is an IterableDataset"),
        (DataWithoutLength(), "a DataWithoutLength has no __len__"),
        ([], "the list is empty"),
        (ConstantData({"pixels": torch.ones(2), "label": 1}), "a dict of Tensor, int, not an .input, target. pair"),
        (ConstantData(torch.ones(2)), "a sample of the ConstantData is a Tensor"),
        (ConstantData((object(), 1)), "a tuple of object, int"),
        (ConstantData((1, 2, 3)), "a tuple of int, int, int"),
    ],
    ids=["iterable", "no-length", "empty", "dict", "no-pair", "no-tensor", "triple"],
)
def test_unsupported_data_sets_are_refused_with_a_reason(data: Any, message: str) -> None:
    with pytest.raises(Refused, match=message):
        adapt(data, 0, "train")


def test_data_written_for_the_trainer_is_returned_unchanged() -> None:
    own = TrainerData()
    assert adapt(own, 0, "train") is own
    wrapped = Samples(
        ConstantData({"a": 1}), collate=lambda samples: (torch.ones(len(samples)), torch.ones(len(samples)))
    )
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


def test_blocks_that_share_a_parameter_are_not_separate_units() -> None:
    model = nn.Module()
    model.tied = nn.Parameter(torch.ones(4))
    model.layers = nn.ModuleList([Block(model.tied), Block(), Block()])
    assert list(partition.repeated_blocks(model)) == list(model.layers)[1:]
    one = Block()
    assert partition.repeated_blocks(nn.ModuleList([one, one])) == [], "a module that is used twice is not a unit"
