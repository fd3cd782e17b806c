"""A user's model, task and data set."""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from torch import nn
from torch.utils.data import Dataset

from cloudtrain_trainer.arguments import parse
from cloudtrain_trainer.data.streams import adapt
from cloudtrain_trainer.own_task import from_options
from cloudtrain_trainer.rules import Refused
from cloudtrain_trainer.tasks import Draw, Task, digits
from tests.entrypoints.groups import StartGroup
from tests.entrypoints.trainer.launching import exported


def parameters(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


FILES = {
    "own_model": (
        "from dataclasses import replace\n"
        "from torch import nn\n"
        "from cloudtrain_trainer.tasks import digits\n"
        "def net(): return nn.Sequential(nn.Flatten(), nn.Linear(64, 10))\n"
        "def whole(seed): return replace(digits.build(seed), batch_size=7 + seed)\n"
        "def nothing(): pass\n"
        "def frozen(): return net().requires_grad_(False)\n"
        "def sized(hidden): pass\n"
        "number = 3\n"
    ),
    "broken_model": "import not_installed_anywhere\n",
    "unfinished": "x = 1\ndef net(:\n",
    "own_data": (
        "import torch\n"
        "from torch.utils.data import DataLoader, TensorDataset\n"
        "x, y = torch.randn(40, 64), torch.arange(40) % 10\n"
        "def train(): return TensorDataset(x, y)\n"
        "def both(): return train(), train()\n"
        "def named(): return {'train': train(), 'val': train()}\n"
        "def tensors(): return x, y\n"
        "def three(): return train(), train(), train()\n"
        "def nothing(): pass\n"
        "def loader(): return DataLoader(train())\n"
        "def generator(): return (sample for sample in train())\n"
    ),
}


@pytest.fixture
def user_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The modules of `FILES` in the current folder, and packages that are called like the
    trainer's.
    """
    for name, text in FILES.items():
        (tmp_path / f"{name}.py").write_text(text)
    for name in ("models", "tasks"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "net.py").write_text("from own_model import net\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield tmp_path
    for name in (*FILES, "models.net", "models", "tasks.net", "tasks"):
        sys.modules.pop(name, None)


def build(*argv: str) -> Task:
    return from_options(parse(list(argv)))


def test_a_user_model_uses_the_data_and_loss_of_a_task(user_code: Path) -> None:
    base = digits.build(0)
    task = build("--model", "own_model:net", "--task", "digits")
    assert (task.loss, task.batch_size, len(task.train)) == (
        base.loss,
        base.batch_size,
        len(base.train),
    )
    model, (inputs, targets) = task.model(), task.train[Draw(0, [1, 2])]
    assert parameters(model) == 650
    assert task.loss(task.call(model, inputs), targets) > 0


def test_a_task_may_have_the_users_data(user_code: Path) -> None:
    task = build("--task", "digits", "--data", "own_data:both")
    assert (len(task.train), len(task.validation), task.lr) == (40, 40, digits.build(0).lr)


MODEL_MISTAKES = {
    "own_model": "argument --model: expected package.module:factory, got 'own_model'",
    "own-model:net": "expected package.module:factory",
    "no_model:net": "there is no module no_model in ",
    "own_model.part:net": "there is no module own_model.part",
    "own_model:nope": r"own_model\.py has nothing named nope",
    "own_model:number": r"own_model\.py has no function named number",
    "own_model:nothing": (
        "own_model.py:6: --model own_model:nothing returned nothing: return a Task"
    ),
    "own_model:net": (
        "own_model.py:4: --model own_model:net returned a Sequential: add --data with your data, or"
    ),
    "own_model:sized": "own_model.py:8: .* needs 'hidden', and the trainer only passes seed: give",
    "unfinished:net": r"unfinished.py:2: --model unfinished:net: .*def net\(:",
    "own_model:whole --task digits": "a Task: leave out --data and the built-in --task",
    "own_model:nothing --task digits": "own_model.py:6: .* nothing: return an nn.Module",
    "own_model:frozen --task digits": (
        "own_model.py:7: .* the Sequential has no parameter with requires_grad"
    ),
}


@pytest.mark.parametrize(("spec", "message"), MODEL_MISTAKES.items(), ids=list(MODEL_MISTAKES))
def test_a_mistake_in_a_factory_is_told_with_its_place(
    user_code: Path, spec: str, message: str
) -> None:
    with pytest.raises(Refused, match=message):
        build("--model", *spec.split()).model()


def test_a_failed_import_in_user_code_keeps_its_own_error(user_code: Path) -> None:
    with pytest.raises(ModuleNotFoundError, match="not_installed_anywhere"):
        build("--model", "broken_model:net")


ROOT = Path(__file__).resolve().parents[3]
EXAMPLE = ROOT / "examples" / "own-dataset"


class ConstantData(Dataset[Any]):
    """All samples are the same value."""

    def __init__(self, sample: Any) -> None:
        self.sample = sample

    def __len__(self) -> int:
        return 3

    def __getitem__(self, index: int) -> Any:
        return self.sample


class DataWithoutLength(Dataset[int]):
    def __getitem__(self, index: int) -> int:
        return index


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (DataWithoutLength(), "a DataWithoutLength has no __len__"),
        ([], "the list is empty"),
        (torch.ones(2, 3), "train is a Tensor: return torch.utils.data.TensorDataset"),
        (7, "train is an int: return a data set with __getitem__ and __len__, or an iterable"),
        (ConstantData("text"), "test_user_tasks.py:.* is a str, without a tensor, array or number"),
        (
            ConstantData((object(), 1)),
            "a tuple of object, int, which cannot be stacked into a tensor: give a collate",
        ),
        (ConstantData((1, 2, 3)), "a tuple of int, int, int: return an .input, target. pair"),
    ],
    ids=["no-length", "empty", "tensor", "number", "text", "no-tensor", "triple"],
)
def test_unsupported_data_sets_are_refused_with_a_reason(data: Any, message: str) -> None:
    with pytest.raises(Refused, match=message):
        adapt(data, 0, "train")


@pytest.mark.once
def test_the_example_learns_from_its_own_data_set(tmp_path: Path, group: StartGroup) -> None:
    shutil.copy(EXAMPLE / "iris.py", tmp_path)
    args = yaml.safe_load((EXAMPLE / "job.yaml").read_text())["args"]
    ranks = group(1, " ".join(f"--{name}={value}" for name, value in args.items()))
    ranks.succeed()
    assert ranks.events("metrics")[-1]["values"]["val_accuracy"] >= 0.9
    assert exported(tmp_path / "cloudtrain-output/model")["0.weight"].shape == (32, 4)


OWN = """
from collections import Counter
import torch
from torch import nn
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))
        self.head, self.forgotten = nn.Linear(4, 2), nn.Linear(4, 4)
    def forward(self, measures):
        for block in self.blocks:
            measures = measures + block(measures).relu()
        return self.head(measures)
def whole():
    model = Net()
    model.forgotten.requires_grad_(False)
    return model
class Rows:
    def __len__(self): return 60
    def __iter__(self):
        for row in torch.randn(60, 4, generator=torch.Generator().manual_seed(0)):
            yield {"measures": row.tolist(), "label": int(row.sum() > 0), "name": "a row"}
def data(): return Rows(), Rows()
"""


def test_a_model_and_an_iterable_of_dicts_train_alike_on_one_rank_and_on_two(
    tmp_path: Path, group: StartGroup
) -> None:
    (tmp_path / "own.py").write_text(OWN)
    common = (
        "--model=own:whole --data=own:data --epochs=2 --batch-size=12 --lr=0.01"
        " --lr-schedule=constant --warm-up=0"
    )
    ranks = group(1, f"{common} --strategy=single --max-steps=7")
    ranks.succeed()
    ranks = group(2, f"{common} --strategy=ddp")
    ranks.succeed()
    assert [event["step"] for event in ranks.events("resumed")] == [7]
    two = ranks.events("metrics")[-1]["values"]
    ranks = group(1, f"{common} --no-resume")
    ranks.succeed()
    one = ranks.events("metrics")[-1]["values"]
    assert one["val_accuracy"] == pytest.approx(two["val_accuracy"], abs=0.02)
    assert one["val_loss"] == pytest.approx(two["val_loss"], rel=1e-4)


def test_a_parameter_without_gradient_is_named_under_ddp(tmp_path: Path, group: StartGroup) -> None:
    (tmp_path / "own.py").write_text(OWN)
    ranks = group(2, "--model=own:Net --data=own:data --batch-size=12")
    assert ranks.wait() == [2, 2]
    assert "forgotten.weight, forgotten.bias. Freeze them" in ranks.output()


@pytest.mark.once
def test_the_program_of_the_guide_learns(tmp_path: Path, group: StartGroup) -> None:
    example = ROOT / "examples" / "tabular"
    guide = (ROOT / "docs/guides/your-model.md").read_text()
    program = (example / "net.py").read_text()
    assert f"```python\n{program}```" in guide
    assert len([line for line in program.splitlines() if line]) <= 20
    own_batch = next(
        block
        for block in re.findall(r"```python\n(.*?)```", guide, re.DOTALL)
        if "def task(" in block
    )
    (tmp_path / "own.py").write_text(own_batch)
    (tmp_path / "net.py").write_text(program)
    args = yaml.safe_load((example / "job.yaml").read_text())["args"]
    for flags in ({**args, "epochs": 10}, {"task": "own:task", "epochs": 10}):
        ranks = group(
            1, " ".join(f"--{name}={value}" for name, value in flags.items()) + " --no-resume"
        )
        ranks.succeed()
        values = ranks.events("metrics")[-1]["values"]
        assert values.get("val_accuracy", values.get("val_recall")) >= 0.9


def test_samples_of_different_lengths_are_told_without_a_traceback(
    tmp_path: Path, group: StartGroup
) -> None:
    (tmp_path / "own.py").write_text(
        "from torch import nn\n"
        "def model(): return nn.Linear(4, 2)\n"
        "def data(): return [([0.0] * (4 + (number == 50)), 1) for number in range(60)]\n"
    )
    for flags in ("--workers=0", "--workers=1"):
        ranks = group(1, f"--model=own:model --data=own:data {flags}")
        assert ranks.wait() == [2]
        assert "samples (a tuple of list, int) cannot be stacked: " in ranks.output()
        assert "Traceback" not in ranks.output()
