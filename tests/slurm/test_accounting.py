"""A cluster with slurmdbd: `ACCOUNTING=1 .ci/engine slurm start`."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

import cloudtrain
from tests.slurm.cluster import (
    HAS_SLURMDBD,
    NEEDS_SLURM,
    answer_of,
    instead_of,
    job_of,
    printed_by,
    started,
)
from tests.support.waiting import HANG_SECONDS, eventually

pytestmark = [
    NEEDS_SLURM,
    pytest.mark.skipif(not HAS_SLURMDBD, reason="needs ACCOUNTING=1 at the start of Slurm"),
]

RANKS = "import os\nprint('rank', os.environ['RANK'], flush=True)\n"


def test_a_doctor_names_accounts_and_qos(tmp_path: Path) -> None:
    assert "vision||low,normal" in printed_by(
        "doctor", "slurm", "--job", str(job_of(tmp_path, RANKS))
    )


def test_an_account_of_others_is_refused_before_it_is_sent(tmp_path: Path) -> None:
    with pytest.raises(cloudtrain.CloudtrainError, match="Invalid account"):
        started(job_of(tmp_path, RANKS, ", account: nosuch"))


def test_a_job_cancelled_in_the_queue_is_known_after_the_controller_forgot_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = started(job_of(tmp_path, RANKS, ", partition: closed, account: vision, qos: low"))
    subprocess.run(["scancel", "--name", run.id], check=True)
    eventually(lambda: "CANCELLED" in answer_of("sacct", "-nPX", f"--name={run.id}"))
    instead_of("squeue", tmp_path, monkeypatch, "#!/bin/sh\n")
    assert run.wait(HANG_SECONDS).reason == "cancelled by scancel"
