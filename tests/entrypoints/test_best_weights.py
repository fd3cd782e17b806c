"""The best weights are written behind training, and before any checkpoint that knows of them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch

from cloudtrain_trainer.checkpoints import checkpointer, files
from cloudtrain_trainer.training.loop import Loop
from tests.support.limits import HANG_SECONDS


class SlowDisk:
    """Writes a model only after its release."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.begun = threading.Event()
        self.goes_on = threading.Event()
        self._write = files.write_model
        monkeypatch.setattr(checkpointer, "write_model", self.write)

    def write(self, *arguments: Any) -> Path:
        self.begun.set()
        assert self.goes_on.wait(HANG_SECONDS)
        return self._write(*arguments)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> SlowDisk:
    return SlowDisk(monkeypatch)


def weights(loop: Loop) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in loop.step.model.state_dict().items()}


def written(tmp_path: Path) -> dict[str, torch.Tensor]:
    tensors: dict[str, torch.Tensor] = import_module("safetensors.torch").load_file(
        tmp_path / "best.safetensors"
    )
    return tensors


def are_same(one: dict[str, torch.Tensor], second: dict[str, torch.Tensor]) -> bool:
    return one.keys() == second.keys() and all(torch.equal(one[name], second[name]) for name in one)


def test_training_goes_on_while_the_best_weights_are_written(
    make_loop: Callable[..., Loop], disk: SlowDisk, tmp_path: Path
) -> None:
    pytest.importorskip("safetensors")
    loop = make_loop()
    batches = loop.batches.load(0, 0)
    evaluated = weights(loop)
    loop.checkpointer.record_evaluation(0.5)
    assert disk.begun.wait(HANG_SECONDS)
    loop.step.train_step(batches, 0, 100)
    assert not are_same(weights(loop), evaluated)
    assert not list(tmp_path.glob("best.*"))
    disk.goes_on.set()
    loop.checkpointer.checkpoints.finish()
    assert are_same(written(tmp_path), evaluated)
    later = weights(loop)
    loop.position = loop.position._replace(step=1)
    loop.checkpointer.record_evaluation(0.4)
    loop.checkpointer.checkpoints.finish()
    assert are_same(written(tmp_path), later)


def test_no_checkpoint_knows_of_best_weights_that_are_not_written(
    make_loop: Callable[..., Loop], disk: SlowDisk, tmp_path: Path
) -> None:
    """Killed in between, a run would resume with the best loss of one step and the weights of
    another.
    """
    loop = make_loop()
    loop.checkpointer.record_evaluation(0.5)
    loop.checkpointer.save()
    assert disk.begun.wait(HANG_SECONDS)
    assert not list(tmp_path.glob("step-*"))
    disk.goes_on.set()
    loop.checkpointer.checkpoints.finish()
    assert {path.name for path in tmp_path.iterdir()} == {"step-00000000", "best.safetensors"}


def test_best_weights_that_cannot_be_written_end_training_and_leave_no_checkpoint(
    make_loop: Callable[..., Loop], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def full(*_: Any) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(checkpointer, "write_model", full)
    loop = make_loop("--epochs", "1")
    with pytest.raises(OSError, match="no space left"):
        loop.run()
    assert not list(tmp_path.glob("step-*"))


def test_frozen_and_tied_weights_are_copied_without_a_clone_on_the_gpu(
    make_loop: Callable[..., Loop], monkeypatch: pytest.MonkeyPatch
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
    expected = {f"model.{name}" for name, _ in model.named_parameters(remove_duplicate=False)}
    assert "model.tied" in expected
    assert expected <= names[0]
