"""Checkpoints without frozen weights: smaller, exact, and refused for another base model."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from importlib import import_module
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.distributed.checkpoint.api import CheckpointException

from cloudtrain_trainer import tasks
from cloudtrain_trainer.options import Folders
from cloudtrain_trainer.rules import Refused
from cloudtrain_trainer.tasks import Task
from cloudtrain_trainer.training.loop import Loop

FLAGS = ("--batch-size", "64", "--checkpoint-every-steps", "3", "--keep", "9")
MakeLoop = Callable[..., Loop]


class Adapter(nn.Module):
    """A frozen base of 270k parameters, tied to itself, and a trained adapter of 1.5k."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.base = nn.Sequential(
            nn.Flatten(), nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 512), nn.Dropout(0.1)
        ).requires_grad_(False)
        self.tied = self.base[3]
        self.adapter = nn.Linear(512, 3)
        self.head = nn.Linear(3, 10)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.head(self.adapter(self.base(images)))
        return out


class Teacher(Adapter):
    """A model that changes one of its frozen weights itself."""

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        self.get_parameter("base.3.bias").data.add_(0.01)
        return super().forward(images)


def task_of(model: Callable[[], nn.Module]) -> Task:
    return replace(tasks.build("digits", 0), model=model)


def train(make_loop: MakeLoop, model: Callable[[], nn.Module], *flags: str) -> Loop:
    """Train to step 6 from the newest checkpoint."""
    loop = make_loop(*FLAGS, "--max-steps", "6", *flags, task=task_of(model))
    loop.resume()
    loop.run()
    return loop


def state(loop: Loop) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in loop.step.model.state_dict().items()}


def remove_checkpoint(folder: Path, step: int) -> None:
    shutil.rmtree(folder / f"step-{step:08d}")


def are_equal(one: dict[str, torch.Tensor], second: dict[str, torch.Tensor]) -> bool:
    return one.keys() == second.keys() and all(torch.equal(one[name], second[name]) for name in one)


@pytest.mark.parametrize("model", [Adapter, Teacher])
@pytest.mark.parametrize("choice", ["auto", "yes"])
def test_a_resume_without_frozen_weights_is_exact(
    make_loop: MakeLoop, tmp_path: Path, model: Callable[[], nn.Module], choice: str
) -> None:
    whole = state(train(make_loop, model, "--save-frozen", choice))
    remove_checkpoint(tmp_path, 6)
    resumed = train(make_loop, model)
    assert resumed.checkpointer.checkpoints.steps() == [6, 3]
    assert are_equal(state(resumed), whole)


def test_checkpoints_and_models_of_adapters_are_small(make_loop: MakeLoop, tmp_path: Path) -> None:
    load = import_module("safetensors").safe_open
    export = import_module("train").export_model
    folders = Folders(tmp_path / "model", tmp_path, tmp_path)
    sizes = {}
    for choice in ("yes", "auto"):
        loop = train(make_loop, Adapter, "--save-frozen", choice)
        export(loop, folders)
        model_file = folders.model / "model.safetensors"
        files = *(tmp_path / "step-00000006/weights-0").glob("*.distcp"), model_file
        sizes[choice] = [file.stat().st_size for file in files]
        for path in tmp_path.glob("step-*"):
            shutil.rmtree(path)
    trained = {name for name, p in loop.step.model.named_parameters() if p.requires_grad}
    with load(model_file, "pt") as model:
        assert set(model.keys()) == trained
        assert model.metadata()["left_out"] == "6 frozen tensors of the base model"
    whole_weights, whole_model = sizes["yes"]
    small_weights, small_model = sizes["auto"]
    assert 1_100_000 < whole_weights < 1_400_000, "tied weights are stored once"
    assert small_weights < 50_000
    assert small_model < whole_model / 100


def test_another_base_is_refused(make_loop: MakeLoop) -> None:
    train(make_loop, Adapter)
    with pytest.raises(Refused, match=r"other ones now \(base\.1\.weight, .*--seed"):
        train(make_loop, lambda: Adapter(seed=1))


def test_a_weight_that_nobody_saved_is_an_error(make_loop: MakeLoop) -> None:
    def wider() -> nn.Module:
        model = Adapter()
        model.added = nn.Linear(2, 2).requires_grad_(False)
        return model

    train(make_loop, Adapter)
    with pytest.raises(CheckpointException, match=r"Missing key.*model\.added"):
        train(make_loop, wider)


def test_few_frozen_weights_are_saved(make_loop: MakeLoop) -> None:
    def head_frozen() -> nn.Module:
        model = Adapter().requires_grad_(True)
        model.head.requires_grad_(False)
        return model

    loop = make_loop(*FLAGS, task=task_of(head_frozen))
    assert loop.checkpointer.frozen.unchanged() == set()
    loop = make_loop(*FLAGS, "--save-frozen", "no", task=task_of(head_frozen))
    assert loop.checkpointer.frozen.unchanged() == {"head.weight", "head.bias"}
