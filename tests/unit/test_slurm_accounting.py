"""The end of a Slurm job that the controller has forgotten, by recorded rows of sacct 22.05."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from cloudtrain.errors import CloudError
from cloudtrain.providers.slurm.status import job_status

NO_ACCOUNTING = "echo Slurm accounting storage is disabled >&2; exit 1"
NO_ANSWER = "echo sacct: error: Problem talking to the database: Connection refused >&2; exit 1"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a run whose script was sent, beside a squeue that has forgotten its job."""
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    program(tmp_path / "squeue", "true")
    (tmp_path / "job.sbatch").touch()
    return tmp_path


def program(path: Path, script: str) -> None:
    """Write a program."""
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


@pytest.mark.parametrize(
    ("state", "code", "outcome", "phase"),
    [
        ("COMPLETED", "0:0", "", "completed"),
        ("FAILED", "7:0", "failed", "failed: exit code 7:0"),
        ("CANCELLED by 0", "0:0", "stopped", "cancelled by scancel"),
        ("TIMEOUT", "0:0", "stopped", "ended by Slurm at its time limit"),
        ("NODE_FAIL", "0:0", "failed", "a node failed"),
        ("OUT_OF_MEMORY", "0:125", "failed", "out of the memory that it asked for"),
    ],
)
def test_a_forgotten_job_has_ended_as_the_accounting_says(
    folder: Path, state: str, code: str, outcome: str, phase: str
) -> None:
    rows = f"107|FAILED|2||/of/another|1:0\n108|{state}|2||{folder}|{code}"
    program(folder / "sacct", f"echo '{rows}'")
    status = job_status("digits-k2x9", folder)
    assert status is not None
    assert (status.has_ended, status.outcome, status.phase) == (True, outcome, phase)


@pytest.mark.parametrize(("code", "outcome"), [("0", ""), ("5", "stopped"), ("1", "failed")])
def test_a_script_knows_its_end_better_than_a_controller_that_was_killed(
    folder: Path, code: str, outcome: str
) -> None:
    (folder / "exit").write_text(f"{code}\n")
    program(folder / "squeue", f"echo '108|NODE_FAIL|2||{folder}|None'")
    status = job_status("digits-k2x9", folder)
    assert status is not None
    assert status.outcome == outcome


def test_a_job_that_slurm_has_lost_is_told_as_such(folder: Path) -> None:
    program(folder / "sacct", f"echo '108|RUNNING|2||{folder}|0:0'")
    (folder / "owner").symlink_to("108")
    status = job_status("digits-k2x9", folder)
    assert status is not None
    assert status.phase.startswith("Slurm has lost this job, and its script was killed")


@pytest.mark.parametrize(
    "answer", [NO_ACCOUNTING, "true", "echo '108|RUNNING|2||'$(dirname $0)'|0:0'"]
)
def test_a_job_that_nobody_knows_does_not_exist(folder: Path, answer: str) -> None:
    program(folder / "sacct", answer)
    assert job_status("digits-k2x9", folder) is None


def test_an_accounting_that_is_silent_leaves_it_open(folder: Path) -> None:
    program(folder / "sacct", NO_ANSWER)
    with pytest.raises(CloudError, match="Connection refused"):
        job_status("digits-k2x9", folder)


def test_nobody_is_asked_about_a_script_that_was_never_written(folder: Path) -> None:
    program(folder / "sacct", NO_ANSWER)
    (folder / "job.sbatch").unlink()
    assert job_status("digits-k2x9", folder) is None
