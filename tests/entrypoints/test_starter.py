"""The script of `cloudtrain init`: it resumes from the newest readable checkpoint."""

from __future__ import annotations

import argparse
import os
import runpy
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

import cloudtrain

Train = Callable[..., tuple[str, torch.Tensor]]
SCRIPT = Path(cloudtrain.__file__).parent / "cli" / "starter" / "train.py"


def test_a_checkpoint_that_was_cut_off_is_passed_over_for_the_one_before(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    program = runpy.run_path(str(SCRIPT), run_name="starter")
    cpu = torch.device("cpu")
    load = program["load"]
    save = program["save"]
    assert load(tmp_path, cpu) == {}
    for epoch in range(3):
        save({"model": torch.ones(1000), "epoch": epoch}, tmp_path)
    assert load(tmp_path, cpu)["epoch"] == 2
    newest = tmp_path / "latest.pt"
    for size in (newest.stat().st_size // 2, 10, 0):
        os.truncate(newest, size)
        assert load(tmp_path, cpu)["epoch"] == 1
    assert "latest.pt is damaged, the one before is tried" in capsys.readouterr().out


@pytest.fixture
def train(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Iterator[Train]:
    """Train as the only rank, with checkpoints and model in a folder; the output and the weights."""
    monkeypatch.setenv("RANK", "0")
    program = runpy.run_path(str(SCRIPT), run_name="starter")
    torch_distributed: Any = dist  # mypy knows no HashStore
    store = torch_distributed.HashStore()
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)

    def run(folder: Path, epochs: int, lr: float = 0.05) -> tuple[str, torch.Tensor]:
        monkeypatch.setenv("CLOUDTRAIN_CHECKPOINT_DIR", str(folder / "checkpoints"))
        monkeypatch.setenv("CLOUDTRAIN_MODEL_DIR", str(folder))
        program["train"](argparse.Namespace(epochs=epochs, lr=lr))
        weights = torch.load(folder / "model.pt", weights_only=True)
        return capfd.readouterr().out, torch.cat([value.flatten() for value in weights.values()])

    yield run
    dist.destroy_process_group()


def test_a_resume_without_changes_ends_bit_identically(train: Train, tmp_path: Path) -> None:
    _, expected = train(tmp_path / "whole", epochs=4)
    train(tmp_path / "parts", epochs=2)
    output, weights = train(tmp_path / "parts", epochs=4)
    assert "continues after epoch 2" in output
    assert "lr is" not in output
    assert torch.equal(weights, expected)


def test_a_resume_trains_at_the_rate_that_is_set_by_hand(train: Train, tmp_path: Path) -> None:
    _, before = train(tmp_path, epochs=1)
    output, after = train(tmp_path, epochs=3, lr=0.0)
    assert "lr is 0.0; it was 0.05 in the checkpoint" in output
    assert "epochs is 3; it was 1 in the checkpoint" in output
    assert torch.equal(after, before)


def test_a_rate_that_a_schedule_has_changed_is_kept_if_nothing_is_set_by_hand() -> None:
    apply_changes = runpy.run_path(str(SCRIPT), run_name="starter")["apply_changes"]
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.01)
    apply_changes(argparse.Namespace(epochs=2, lr=0.05), {"epochs": 1, "lr": 0.05}, optimizer)
    assert optimizer.param_groups[0]["lr"] == 0.01


def test_an_argument_that_the_checkpoint_lacks_does_not_stop_a_resume(
    capsys: pytest.CaptureFixture[str],
) -> None:
    apply_changes = runpy.run_path(str(SCRIPT), run_name="starter")["apply_changes"]
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.01)
    args = argparse.Namespace(lr=0.5, momentum=0.9)
    apply_changes(args, {"lr": 0.05, "width": 8}, optimizer)
    assert optimizer.param_groups[0]["lr"] == 0.5
    assert capsys.readouterr().out == "lr is 0.5; it was 0.05 in the checkpoint\n"


def test_every_epoch_says_how_many_steps_there_are(train: Train, tmp_path: Path) -> None:
    output, _ = train(tmp_path, epochs=2)
    progress = [line for line in output.splitlines() if '"type":"progress"' in line]
    assert [
        '"step":50,"steps":100' in line or '"step":100,"steps":100' in line for line in progress
    ] == [True] * 2
