"""Checkpoints without frozen weights: smaller, exact, and refused for another base model."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from importlib import import_module
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.distributed.checkpoint.api import CheckpointException

from cloudtrain_trainer import tasks
from cloudtrain_trainer.checkpoints.starting_weights import check, read
from cloudtrain_trainer.options import Folders
from cloudtrain_trainer.rules import Refused
from cloudtrain_trainer.tasks import Task, digits
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
    with pytest.raises(Refused, match=r"other ones now \(base\.1\.weight, .*--weights"):
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


def net(classes: int = 3) -> nn.Module:
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, classes))


def load(model: nn.Module, path: Path, partly: bool) -> str:
    line = check(model, path, partly)
    read(model, path)
    return line


def weights(model: nn.Module | None = None) -> dict[str, Tensor]:
    torch.manual_seed(1)
    return dict((model or net()).state_dict())


def write_file(folder: Path) -> Path:
    save_file(weights(), folder / "any.safetensors")
    return folder / "any.safetensors"


def write_torch(folder: Path) -> Path:
    torch.save({f"module.{name}": value for name, value in weights().items()}, folder / "any.pt")
    return folder / "any.pt"


def write_folder(folder: Path) -> Path:
    save_file(weights(), folder / "model.safetensors")
    return folder


def write_shards(folder: Path) -> Path:
    names = sorted(weights())
    shards = {
        "model-00001-of-00002.safetensors": names[:4],
        "model-00002-of-00002.safetensors": names[4:],
    }
    for shard, part in shards.items():
        save_file({name: weights()[name] for name in part}, folder / shard)
    index = {"weight_map": {name: shard for shard, part in shards.items() for name in part}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return folder


@pytest.mark.parametrize("write", [write_file, write_torch, write_folder, write_shards])
def test_the_weights_of_every_format_are_read(
    write: Callable[[Path], Path], tmp_path: Path
) -> None:
    model = net()
    assert load(model, write(tmp_path), False).startswith("training starts from 9 tensors of ")
    assert all(torch.equal(value, weights()[name]) for name, value in model.state_dict().items())


def test_a_new_head_keeps_its_own_weights_where_that_is_asked_for(tmp_path: Path) -> None:
    model = net(classes=5)
    path = write_file(tmp_path)
    head = model.state_dict()["2.weight"].clone()
    with pytest.raises(
        Refused, match=r"2 have another shape: .*2.weight \(3, 8\), not \(5, 8\). .* or --part"
    ):
        load(net(classes=5), path, False)
    assert "training starts from 7 tensors" in load(model, path, True)
    assert torch.equal(model.state_dict()["2.weight"], head)
    assert torch.equal(model.state_dict()["0.weight"], weights()["0.weight"])


def test_a_matrix_that_is_tied_may_be_there_once(tmp_path: Path) -> None:
    model = nn.ModuleDict({"embedding": nn.Embedding(4, 8), "head": nn.Linear(8, 4, bias=False)})
    model["head"].weight = model["embedding"].weight
    save_file({"embedding.weight": torch.ones(4, 8)}, tmp_path / "model.safetensors")
    load(model, tmp_path, False)
    assert torch.equal(model.state_dict()["head.weight"], torch.ones(4, 8))


def test_what_cannot_be_used_is_refused_with_a_reason(tmp_path: Path) -> None:
    def refused(path: Path, message: str, partial: bool = False) -> None:
        with pytest.raises(Refused, match=message):
            load(net(), path, partial)

    refused(tmp_path / "nowhere", r"does not exist \(in a job an input is")
    refused(tmp_path, "has no weights: expected model.safetensors, model.pt")
    save_file({"other": torch.ones(1)}, tmp_path / "other.safetensors")
    refused(
        tmp_path / "other.safetensors",
        "9 are missing: 0.weight, .* and 4 more; 1 are not in the model: other",
        True,
    )
    (tmp_path / "torn.safetensors").write_bytes(b"torn")
    refused(tmp_path / "torn.safetensors", "torn.safetensors cannot be read")
    torch.save([1], tmp_path / "list.pt")
    refused(tmp_path / "list.pt", "is not a state dict")
    torch.save(net(), tmp_path / "module.pt")
    refused(tmp_path / "module.pt", "module.pt cannot be read")
    write_shards(tmp_path)
    (tmp_path / "model-00002-of-00002.safetensors").unlink()
    refused(
        tmp_path,
        "lacks model-00002-of-00002.safetensors, which its model.safetensors.index.json names",
    )


def test_a_run_starts_from_them_and_resumes_from_its_own(
    make_loop: Callable[..., Loop], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    initial = weights(digits.model())
    save_file(initial, tmp_path / "given.safetensors")
    flags = ("--weights", str(tmp_path / "given.safetensors"))
    loop = make_loop(*flags, "--max-steps", "1")
    assert torch.equal(loop.step.model.state_dict()["0.weight"], initial["0.weight"])
    assert "training starts from " in capfd.readouterr().out
    loop.run()
    resumed = make_loop(*flags, "--max-steps", "2")
    resumed.resume()
    assert torch.equal(
        resumed.step.model.state_dict()["0.weight"], loop.step.model.state_dict()["0.weight"]
    )
    assert not torch.equal(resumed.step.model.state_dict()["0.weight"], initial["0.weight"])
