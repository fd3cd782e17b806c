"""The script that `cloudtrain init` writes: it goes on from the newest checkpoint that can be read."""

from __future__ import annotations

import os
import runpy
from pathlib import Path

import pytest
import torch

import cloudtrain

SCRIPT = Path(cloudtrain.__file__).parent / "cli" / "starter" / "train.py"


def test_a_checkpoint_that_was_cut_off_is_passed_over_for_the_one_before(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    program, cpu = runpy.run_path(str(SCRIPT), run_name="starter"), torch.device("cpu")
    load, save = program["load"], program["save"]
    assert load(tmp_path, cpu) == {}
    for epoch in range(3):
        save({"model": torch.ones(1000), "epoch": epoch}, tmp_path)
    assert load(tmp_path, cpu)["epoch"] == 2
    newest = tmp_path / "latest.pt"
    for size in (newest.stat().st_size // 2, 10, 0):
        os.truncate(newest, size)
        assert load(tmp_path, cpu)["epoch"] == 1
    assert "latest.pt is damaged, the one before is tried" in capsys.readouterr().out
