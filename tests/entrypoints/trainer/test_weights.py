"""The best weights are written behind training, and before any checkpoint that knows of them.
Checkpoints without frozen weights are smaller, exact, and refused for another base model.
"""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable
from dataclasses import replace
from importlib import import_module
from pathlib import Path

import pytest
import torch
from torch import nn

from cloudtrain_trainer.checkpoints import tensors as checkpoint_tensors
from cloudtrain_trainer.options import Folders
from cloudtrain_trainer.rules import Refused
from cloudtrain_trainer.tasks import Task, digits
from cloudtrain_trainer.training.loop import Loop
from tests.entrypoints.trainer.test_optimizers import are_equal
from tests.support.waiting import HANG_SECONDS

MakeLoop = Callable[..., Loop]


class SlowDisk:
    """Makes the best weights visible only after its release."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.begun = threading.Event()
        self.goes_on = threading.Event()
        rename = Path.rename

        def rename_slowly(path: Path, target: Path) -> Path:
            if path.name.startswith("best-"):
                self.begun.set()
                assert self.goes_on.wait(HANG_SECONDS)
            return rename(path, target)

        monkeypatch.setattr(Path, "rename", rename_slowly)


def complete(folder: Path, pattern: str) -> list[str]:
    """Return the names of the folders of this pattern that are complete."""
    return [path.name for path in folder.glob(pattern) if path.suffix != ".partial"]


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> SlowDisk:
    return SlowDisk(monkeypatch)


def weights(loop: Loop) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in loop.step.model.state_dict().items()}


def written(loop: Loop, step: int) -> dict[str, torch.Tensor]:
    """The weights on disk, read into a new model."""
    checkpoint = loop.checkpointer.checkpoints.find_best(step)
    assert checkpoint is not None
    model = loop.task.model()
    checkpoint_tensors.load(loop.checkpointer.checkpoints.read_tensors(checkpoint), model, None)
    return dict(model.state_dict())


def test_training_goes_on_while_the_best_weights_are_written(
    make_loop: MakeLoop, disk: SlowDisk, tmp_path: Path
) -> None:
    loop = make_loop()
    batches = loop.batches.load(0, 0)
    evaluated = weights(loop)
    loop.checkpointer.record_evaluation(0.5)
    assert disk.begun.wait(HANG_SECONDS)
    loop.step.train_step(batches, 0, 100)
    assert not are_equal(weights(loop), evaluated)
    assert not complete(tmp_path, "best-*")
    disk.goes_on.set()
    loop.checkpointer.checkpoints.finish()
    assert are_equal(written(loop, 0), evaluated)
    later = weights(loop)
    loop.position = loop.position._replace(step=1)
    loop.checkpointer.record_evaluation(0.4)
    loop.checkpointer.checkpoints.finish()
    assert are_equal(written(loop, 1), later)
    assert [path.name for path in tmp_path.iterdir()] == ["best-00000001"]


def test_no_checkpoint_knows_of_best_weights_that_are_not_written(
    make_loop: MakeLoop, disk: SlowDisk, tmp_path: Path
) -> None:
    """Killed in between, a run would resume with the best loss of one step and the weights of
    another.
    """
    loop = make_loop()
    loop.checkpointer.record_evaluation(0.5)
    loop.checkpointer.save()
    assert disk.begun.wait(HANG_SECONDS)
    assert not complete(tmp_path, "step-*")
    disk.goes_on.set()
    loop.checkpointer.checkpoints.finish()
    assert {path.name for path in tmp_path.iterdir()} == {"step-00000000", "best-00000000"}


def test_best_weights_that_cannot_be_written_end_training_and_leave_no_checkpoint(
    make_loop: MakeLoop, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    rename = Path.rename

    def fill_up(path: Path, target: Path) -> Path:
        if path.suffix == ".partial":
            raise OSError("no space left")
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", fill_up)
    loop = make_loop("--epochs", "1")
    with pytest.raises(OSError, match="no space left"):
        loop.run()
    assert not complete(tmp_path, "step-*")


def test_the_best_weights_of_the_checkpoint_stay_until_the_next_one(
    make_loop: MakeLoop, tmp_path: Path
) -> None:
    """A run that is killed resumes from the checkpoint, and needs the best weights it refers to."""
    loop = make_loop()
    for step in range(4):
        loop.position = loop.position._replace(step=step)
        loop.checkpointer.record_evaluation(1 / (step + 1))
        if step == 1:
            loop.checkpointer.save()
    loop.checkpointer.checkpoints.finish()
    names = {path.name for path in tmp_path.glob("best-*")}
    assert names == {"best-00000001", "best-00000003"}


def test_frozen_and_tied_weights_are_copied_without_a_clone_on_the_gpu(
    make_loop: MakeLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop = make_loop()
    model = loop.step.model
    frozen, *_ = model.parameters()
    frozen.requires_grad_(False)
    model.register_parameter("tied", frozen)
    names: list[set[str]] = []
    monkeypatch.setattr(
        loop.checkpointer.checkpoints, "save", lambda *arguments: names.append(arguments[-1])
    )
    loop.checkpointer.save()
    expected = {f"model.{name}" for name, _ in model.named_parameters()}
    assert "model.tied" in expected
    assert expected <= names[0]


FLAGS = ("--batch-size", "64", "--checkpoint-every-steps", "3", "--keep", "9")


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
    return replace(digits.build(0), model=model)


def train(make_loop: MakeLoop, model: Callable[[], nn.Module], *flags: str) -> Loop:
    """Train to step 6 from the newest checkpoint."""
    loop = make_loop(*FLAGS, "--max-steps", "6", *flags, task=task_of(model))
    loop.resume()
    loop.run()
    return loop


def remove_checkpoint(folder: Path, step: int) -> None:
    shutil.rmtree(folder / f"step-{step:08d}")


@pytest.mark.parametrize("model", [Adapter, Teacher])
@pytest.mark.parametrize("choice", ["auto", "yes"])
def test_a_resume_without_frozen_weights_is_exact(
    make_loop: MakeLoop, tmp_path: Path, model: Callable[[], nn.Module], choice: str
) -> None:
    whole = weights(train(make_loop, model, "--save-frozen", choice))
    remove_checkpoint(tmp_path, 6)
    resumed = train(make_loop, model)
    assert resumed.checkpointer.checkpoints.steps() == [6, 3]
    assert are_equal(weights(resumed), whole)


def test_checkpoints_and_models_of_adapters_are_small(make_loop: MakeLoop, tmp_path: Path) -> None:
    load = import_module("safetensors").safe_open
    export = import_module("train").export_model
    folders = Folders(tmp_path / "model", tmp_path, tmp_path)
    sizes = {}
    for choice in ("yes", "auto"):
        loop = train(make_loop, Adapter, "--save-frozen", choice)
        export(loop, folders)
        model_file = folders.model / "model.safetensors"
        written = (tmp_path / "step-00000006").rglob("*")
        size = sum(file.stat().st_size for file in written if file.is_file())
        sizes[choice] = size, model_file.stat().st_size
        for path in tmp_path.glob("step-*"):
            shutil.rmtree(path)
    trained = {name for name, p in loop.step.model.named_parameters() if p.requires_grad}
    with load(model_file, "pt") as model:
        assert set(model.keys()) == trained
        assert model.metadata()["left_out"] == "6 frozen tensors of the base model"
    whole_weights, whole_model = sizes["yes"]
    small_weights, small_model = sizes["auto"]
    assert 1_100_000 < whole_weights < 1_400_000, "tied weights are stored once"
    assert small_weights < 70_000, "with the state of the generators"
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
    with pytest.raises(Refused, match=r"has nothing for added\.weight"):
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
