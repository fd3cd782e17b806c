"""--patience: training ends where it no longer helps, keeps the best model, and a resume forgets none of this."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.entrypoints.test_training import TRAIN, Launch, exported, only

HILL = """
import torch
from torch import nn
from cloudtrain_trainer.tasks import Task

class Ones:
    def __init__(self, target):
        self.target = target
    def __len__(self):
        return 4
    def __getitem__(self, draw):
        return torch.ones(len(draw.indices), 1), torch.full((len(draw.indices), 1), self.target)

def model():
    slope = nn.Linear(1, 1, bias=False)
    nn.init.zeros_(slope.weight)
    return slope

def right(outputs, targets):
    return torch.zeros(())

def build():
    return Task(model=model, loss=nn.MSELoss(), correct=right, train=Ones(2.0), validation=Ones(1.0),
                epochs=12, batch_size=4, lr=0.25, weight_decay=0.0)
"""
"""One weight that goes from 0 to 2, a step per epoch, and fits the validation data at 1: past that it only gets worse
for a while, as a model does that learns its training data by heart."""

FLAGS = ("--model", "hill:build", "--lr-schedule", "constant", "--warm-up", "0")
PATIENCE = 3


def train(folder: Path, *flags: str) -> list[dict[str, Any]]:
    """The events of a training that ends well."""
    folder.mkdir(exist_ok=True)
    (folder / "hill.py").write_text(HILL)
    launch = Launch(folder, str(TRAIN), *FLAGS, *flags)
    events = launch.finish()
    assert launch.process.returncode == 0, "".join(launch.lines)
    return events


def losses(events: list[dict[str, Any]]) -> list[float]:
    return [event["values"]["val_loss"] for event in only(events, "metrics")]


def model_loss(folder: Path) -> float:
    """The validation loss of the model that was exported."""
    weight = float(exported(folder / "cloudtrain-output/model")["weight"])
    return (weight - 1.0) ** 2


def lowest(values: list[float]) -> int:
    """The epoch of the best evaluation, from 1 on; it must be one that others come before and after."""
    best = values.index(min(values)) + 1
    assert 2 < best < len(values)
    return best


def test_training_ends_after_so_many_evaluations_without_a_lower_loss_and_exports_the_best(tmp_path: Path) -> None:
    events = train(tmp_path, "--patience", str(PATIENCE))
    found = losses(events)
    assert len(found) == lowest(found) + PATIENCE < 12
    numbers = json.loads((tmp_path / "cloudtrain-output/output/metrics.json").read_text())
    assert (numbers["outcome"], numbers["step"]) == ("succeeded", len(found))
    assert (numbers["best_step"], numbers["best_val_loss"]) == (lowest(found), min(found))
    assert model_loss(tmp_path) == pytest.approx(min(found), abs=1e-7)
    assert min(found) < found[-1] / 4, "the last model is another one"


def test_without_patience_all_epochs_are_trained_and_the_best_model_is_still_the_one_exported(tmp_path: Path) -> None:
    found = losses(train(tmp_path))
    assert len(found) == 12
    assert model_loss(tmp_path) == pytest.approx(min(found), abs=1e-7)


def test_a_resume_counts_on_and_remembers_the_best(tmp_path: Path) -> None:
    """Cut one evaluation after the best: a count that began anew would let it train longer."""
    whole = train(tmp_path / "whole", "--patience", str(PATIENCE))
    best = lowest(losses(whole))
    first = train(tmp_path / "cut", "--patience", str(PATIENCE), "--max-steps", str(best + 1))
    again = train(tmp_path / "cut", "--patience", str(PATIENCE))
    assert [event["step"] for event in only(again, "resumed")] == [best + 1]
    assert losses(first) + losses(again) == losses(whole)
    assert model_loss(tmp_path / "cut") == model_loss(tmp_path / "whole")

    done = train(tmp_path / "cut", "--patience", str(PATIENCE))
    assert losses(done) == []
    assert [event["step"] for event in only(done, "result")] == [best + PATIENCE], "what has ended stays ended"
