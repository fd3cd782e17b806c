"""The best weights are written behind training, and before any checkpoint that knows of them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from cloudtrain_trainer.checkpoints.store import CheckpointStore
from cloudtrain_trainer.training.loop import Loop
from tests.support.waiting import HANG_SECONDS


class SlowDisk:
    """Writes the best weights only after its release."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.begun = threading.Event()
        self.goes_on = threading.Event()
        write = CheckpointStore._write

        def write_slowly(store: CheckpointStore, final: Path, *arguments: Any) -> None:
            if final.name.startswith("best-"):
                self.begun.set()
                assert self.goes_on.wait(HANG_SECONDS)
            write(store, final, *arguments)

        monkeypatch.setattr(CheckpointStore, "_write", write_slowly)


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
    loop.checkpointer.checkpoints.load(checkpoint, model, None)
    return dict(model.state_dict())


def are_same(one: dict[str, torch.Tensor], second: dict[str, torch.Tensor]) -> bool:
    return one.keys() == second.keys() and all(torch.equal(one[name], second[name]) for name in one)


def test_training_goes_on_while_the_best_weights_are_written(
    make_loop: Callable[..., Loop], disk: SlowDisk, tmp_path: Path
) -> None:
    loop = make_loop()
    batches = loop.batches.load(0, 0)
    evaluated = weights(loop)
    loop.checkpointer.record_evaluation(0.5)
    assert disk.begun.wait(HANG_SECONDS)
    loop.step.train_step(batches, 0, 100)
    assert not are_same(weights(loop), evaluated)
    assert not list(tmp_path.glob("best-*"))
    disk.goes_on.set()
    loop.checkpointer.checkpoints.finish()
    assert are_same(written(loop, 0), evaluated)
    later = weights(loop)
    loop.position = loop.position._replace(step=1)
    loop.checkpointer.record_evaluation(0.4)
    loop.checkpointer.checkpoints.finish()
    assert are_same(written(loop, 1), later)
    assert [path.name for path in tmp_path.iterdir()] == ["best-00000001"]


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
    assert {path.name for path in tmp_path.iterdir()} == {"step-00000000", "best-00000000"}


def test_best_weights_that_cannot_be_written_end_training_and_leave_no_checkpoint(
    make_loop: Callable[..., Loop], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def full(*_: Any) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(CheckpointStore, "_write", full)
    loop = make_loop("--epochs", "1")
    with pytest.raises(OSError, match="no space left"):
        loop.run()
    assert not list(tmp_path.glob("step-*"))


def test_the_best_weights_of_the_checkpoint_stay_until_the_next_one(
    make_loop: Callable[..., Loop], tmp_path: Path
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


def test_the_model_has_the_best_weights_not_the_last_ones(
    make_loop: Callable[..., Loop],
) -> None:
    loop = make_loop()
    best = weights(loop)
    loop.checkpointer.record_evaluation(0.5)
    loop.step.train_step(loop.batches.load(0, 0), 0, 100)
    loop.position = loop.position._replace(step=1)
    assert not are_same(weights(loop), best)
    loop.checkpointer.checkpoints.finish()
    assert loop.checkpointer.load_best()
    assert are_same(weights(loop), best)


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
    expected = {f"model.{name}" for name, _ in model.named_parameters()}
    assert "model.tied" in expected
    assert expected <= names[0]


ENVIRON = {"CLOUDTRAIN_CHECKPOINT_DIR": "/saved", "CLOUDTRAIN_MODEL_DIR": "/model"}
TORCH = RuntimeError("basic_ios::clear: iostream error")
