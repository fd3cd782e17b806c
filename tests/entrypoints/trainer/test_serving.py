"""Files that the trainer writes beside the weights: containers load the model without cloudtrain."""

from __future__ import annotations

import json
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from cloudtrain_trainer.inference import read_safetensors
from cloudtrain_trainer.own_task import complete
from cloudtrain_trainer.rules import Refused
from cloudtrain_trainer.serving import ServingForm
from cloudtrain_trainer.tasks import Task, digits
from tests.entrypoints.trainer.launching import TRAIN, Launch
from tests.support.samples import write

NET = """
from torch import nn
from cloudtrain_trainer.tasks import Task
from layers.wide import Wide
from rows import rows

class Net(nn.Sequential):
    def __init__(self, seed):
        super().__init__(Wide(4, seed), nn.Linear(4, 3))

def task(seed):
    return Task(model=small, train=rows())

def small():
    return Net(1)
"""
SOURCE = {
    "net.py": NET,
    "layers/__init__.py": "",
    "layers/wide.py": "from torch import nn\nclass Wide(nn.Linear):\n"
    "    def __init__(self, size, seed):\n        super().__init__(size, size)\n",
    "rows.py": "import torch\ndef rows():\n"
    "    return [(torch.full((4,), float(i)), i % 3) for i in range(8)]\n",
    "unused.py": "raise AssertionError",
}
SERVE = """
import importlib.util, json, sys
for name in ("numpy", "safetensors", "cloudtrain", "cloudtrain_job", "cloudtrain_wire"):
    sys.modules[name] = None
folder, shape = sys.argv[1], json.loads(sys.argv[2])
spec = importlib.util.spec_from_file_location("inference", folder + "/code/inference.py")
inference = importlib.util.module_from_spec(spec)
spec.loader.exec_module(inference)
import torch
model = inference.model_fn(folder)
assert not model.training
print(json.dumps(model(torch.arange(float(torch.Size(shape).numel())).reshape(shape)).tolist()))
"""


def trained(folder: Path, *flags: str) -> Path:
    """Train two steps; return the folder of the model."""
    launch = Launch(folder, str(TRAIN), "--max-steps", "2", "--batch-size", "8", *flags)
    launch.finish()
    assert launch.process.returncode == 0, launch.lines
    return folder / "cloudtrain-output" / "model"


def served(model: Path, *shape: int) -> Any:
    """Return the outputs of a new process that has torch alone, moved to another place."""
    moved = model.rename(model.with_name("elsewhere"))
    result = subprocess.run(
        [sys.executable, "-I", "-W", "ignore", "-c", SERVE, str(moved), json.dumps(shape)],
        cwd="/",
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    return torch.tensor(json.loads(result.stdout.splitlines()[-1]))


def inputs(*shape: int) -> Tensor:
    return torch.arange(float(torch.Size(shape).numel())).reshape(shape)


def test_the_file_of_the_digits_serves_them_alone(tmp_path: Path) -> None:
    folder = trained(tmp_path, "--mlflow-model")
    assert sorted(path.name for path in (folder / "code").iterdir()) == ["inference.py"]
    model = digits.model()
    model.load_state_dict(load_file(folder / "model.safetensors"))
    expected = model.eval()(inputs(2, 1, 8, 8))
    assert torch.allclose(served(folder, 2, 1, 8, 8), expected)


@pytest.mark.parametrize(
    "flags", [("--task", "net:task"), ("--model", "net:Net", "--data", "rows:rows")]
)
def test_a_model_of_the_working_folder_is_served_with_the_modules_that_it_imports(
    tmp_path: Path, flags: tuple[str, ...]
) -> None:
    write(tmp_path, {**SOURCE, "code/requirements.txt": "einops==0.8\n"})
    folder = trained(tmp_path, *flags, "--mlflow-model")
    code = {str(path.relative_to(folder / "code")) for path in (folder / "code").rglob("*.py")}
    trainer = {"cloudtrain_trainer/__init__.py", "cloudtrain_trainer/tasks/__init__.py"}
    own = {"net.py", "rows.py", "layers/__init__.py", "layers/wide.py"}
    assert code == {"inference.py"} | own | trainer
    conda = json.loads((folder / "conda.yaml").read_text())
    assert "einops==0.8" in conda["dependencies"][-1]["pip"]
    weights = load_file(folder / "model.safetensors")
    hidden = inputs(2, 4) @ weights["0.weight"].T + weights["0.bias"]
    expected = hidden @ weights["1.weight"].T + weights["1.bias"]
    assert torch.allclose(served(folder, 2, 4), expected)


def test_weights_of_every_type_are_read_as_they_were_written(tmp_path: Path) -> None:
    weights = {"empty": torch.empty(0, 3), "scalar": torch.tensor(True)}
    for dtype in (torch.float32, torch.bfloat16, torch.int64, torch.uint8, torch.complex64):
        weights[str(dtype)] = torch.arange(6).reshape(2, 3).to(dtype)
    save_file(weights, tmp_path / "file", {"left_out": "2"})
    read, notes = read_safetensors(tmp_path / "file", weights)
    assert (notes, read.keys()) == ({"left_out": "2"}, weights.keys())
    assert all(torch.equal(read[name], weights[name]) for name in weights)


ROWS = [(torch.zeros(4), 0)] * 8


def net() -> nn.Module:
    return nn.Linear(4, 3)


def test_what_cannot_be_served_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    said: list[str] = []
    unnamed = Task(model=lambda: net(), train=ROWS)
    ServingForm(unnamed, mlflow=False).write(tmp_path / "model", said.append)
    assert said == [
        "the model has no code/inference.py: no import (module:name) leads to what makes it"
    ]
    with pytest.raises(Refused, match="--mlflow-model is for a model of a function or class"):
        ServingForm(unnamed, mlflow=True)
    two = complete(Task(model=net, train=[((torch.zeros(4), torch.zeros(4)), 0)] * 8), 0, "two")
    with pytest.raises(Refused, match="for a model of one tensor, not of a list of Tensor"):
        ServingForm(two, mlflow=True)

    write(tmp_path, {"code/inference.py": "of the job"})
    ServingForm(Task(model=net, train=ROWS), mlflow=False).write(tmp_path / "model", said.append)
    assert (len(said), (tmp_path / "model").exists()) == (1, False)


def test_only_frozen_weights_may_be_missing_in_the_file(tmp_path: Path) -> None:
    ServingForm(Task(model=digits.model, train=ROWS), mlflow=False).write(tmp_path, print)
    load = runpy.run_path(str(tmp_path / "code/inference.py"))["model_fn"]
    part = {"0.weight": torch.ones(32, 1, 3, 3)}
    save_file(part, tmp_path / "model.safetensors", {"left_out": "the rest"})
    assert torch.equal(load(str(tmp_path)).state_dict()["0.weight"], part["0.weight"])
    save_file(part, tmp_path / "model.safetensors")
    with pytest.raises(RuntimeError, match="Missing key"):
        load(str(tmp_path))
    (tmp_path / "model.safetensors").unlink()
    whole = digits.model().state_dict()
    torch.save(whole, tmp_path / "model.pt")  # as without the package safetensors
    assert torch.equal(load(str(tmp_path)).state_dict()["0.weight"], whole["0.weight"])
