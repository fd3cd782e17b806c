"""The shared trainer writes to Weights & Biases itself, offline: `make programs` installs it and
runs this.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.support.command_line import CommandLine

PYTHON = os.environ.get("CLOUDTRAIN_TEST_PROGRAMS", "")
"""The Python of the environment with that package."""

pytestmark = [
    pytest.mark.torchrun,
    pytest.mark.skipif(not PYTHON, reason="Weights & Biases: `make programs` runs this"),
]

JOB = """name: tracked
args: {epochs: 1, max-steps: 20}
resources: {processes: 2}
env: {WANDB_PROJECT: digits, WANDB_MODE: offline}
"""


def test_one_offline_run_of_the_runs_own_name_is_in_the_output(tmp_path: Path) -> None:
    cli = CommandLine(
        tmp_path / "workspace", env={"CLOUDTRAIN_PYTHON": str(Path(PYTHON).absolute())}
    )
    try:
        cli.write(job_yaml=JOB)
        result = cli.run("submit", "--run-id", "tracked-1")
        assert result.code == 0, result.err
        log = cli.run("logs", "tracked-1", "--rank", "0").out
        assert "Weights & Biases is turned off" not in log
        assert "val_accuracy" in log, "its summary at the end"
        (folder,) = (cli.run_folder("tracked-1") / "output/wandb").glob("offline-run-*")
        assert folder.name.endswith("-tracked-1")
        assert (folder / "run-tracked-1.wandb").stat().st_size > 1000
    finally:
        cli.close()
