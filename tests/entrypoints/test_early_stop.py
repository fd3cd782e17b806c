"""--patience: training ends without improvement, the best model is exported, and a resume continues
the count.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.entrypoints.groups import Group, StartGroup
from tests.entrypoints.launching import exported

pytestmark = pytest.mark.once

TASK = """
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
"""A task with one weight, which moves from 0 to 2 and fits the validation data best at 1, as an
overfitting model does. Each epoch has one step.
"""

FLAGS = "--model overfitting:build --lr-schedule constant --warm-up 0"
PATIENCE = 3


@pytest.fixture
def train(group: StartGroup, tmp_path: Path) -> Callable[..., Group]:
    """Trains the task in one process, in a folder below the test's."""

    def start(flags: str = "", folder: str = "") -> Group:
        (tmp_path / folder).mkdir(exist_ok=True)
        (tmp_path / folder / "overfitting.py").write_text(TASK)
        ranks = group(1, f"{FLAGS} {flags}", folder=folder)
        ranks.succeed()
        return ranks

    return start


def val_losses(ranks: Group) -> list[float]:
    """Return the loss of each evaluation."""
    return [event["values"]["val_loss"] for event in ranks.events("metrics")]


def model_loss(folder: Path) -> float:
    """The validation loss of the model that was exported."""
    weight = float(exported(folder / "cloudtrain-output/model")["weight"])
    return (weight - 1.0) ** 2


def best_epoch(values: list[float]) -> int:
    """The epoch of the best evaluation, from 1; there must be others before and after it."""
    best = values.index(min(values)) + 1
    assert 2 < best < len(values)
    return best


def test_training_without_a_lower_loss_ends_and_exports_the_best_model(
    train: Callable[..., Group], tmp_path: Path
) -> None:
    values = val_losses(train(f"--patience {PATIENCE}"))
    assert len(values) == best_epoch(values) + PATIENCE < 12
    numbers = json.loads((tmp_path / "cloudtrain-output/output/metrics.json").read_text())
    assert (numbers["outcome"], numbers["step"]) == ("succeeded", len(values))
    assert (numbers["best_step"], numbers["best_val_loss"]) == (best_epoch(values), min(values))
    assert model_loss(tmp_path) == pytest.approx(min(values), abs=1e-7)
    assert min(values) < values[-1] / 4, "the last model is another one"


def test_without_patience_all_epochs_are_trained_and_the_best_model_is_exported(
    train: Callable[..., Group], tmp_path: Path
) -> None:
    values = val_losses(train())
    assert len(values) == 12
    assert model_loss(tmp_path) == pytest.approx(min(values), abs=1e-7)


def test_a_resume_continues_the_count_and_keeps_the_best_model(
    train: Callable[..., Group], tmp_path: Path
) -> None:
    """Interrupted one evaluation after the best: a count from zero would train longer."""
    flags = f"--patience {PATIENCE}"
    whole = val_losses(train(flags, "whole"))
    best = best_epoch(whole)
    first = val_losses(train(f"{flags} --max-steps {best + 1}", "interrupted"))
    resumed = train(flags, "interrupted")
    assert [event["step"] for event in resumed.events("resumed")] == [best + 1]
    assert first + val_losses(resumed) == whole
    assert model_loss(tmp_path / "interrupted") == model_loss(tmp_path / "whole")

    finished = train(flags, "interrupted")
    assert val_losses(finished) == []
    assert [event["step"] for event in finished.events("result")] == [best + PATIENCE], (
        "it is not trained further"
    )
