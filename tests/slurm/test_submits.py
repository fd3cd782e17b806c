"""A run has one job, whatever becomes of the answer of sbatch and of the client."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

import cloudtrain
from cloudtrain.errors import CloudError, Outcome
from tests.slurm.cluster import (
    NEEDS_SLURM,
    answer_of,
    instead_of,
    job_of,
    log_of,
    rows_of,
    started,
)
from tests.support.waiting import HANG_SECONDS

pytestmark = NEEDS_SLURM

RANKS = """
import os
print("rank", os.environ["RANK"], "of", os.environ["WORLD_SIZE"], flush=True)
"""
LOST_ANSWER = """#!/bin/sh
case "$*" in *--test-only* | --version) exec {real} "$@";; esac
{real} "$@" >/dev/null
echo "sbatch: error: Batch job submission failed: Socket timed out on send/recv operation" >&2
exit 1
"""
NO_CONTROLLER = """#!/bin/sh
echo "sbatch: error: Batch job submission failed: Unable to contact slurm controller (connect failure)" >&2
exit 1
"""
KILLED = """#!/bin/sh
case "$*" in *--test-only* | --version) exec {real} "$@";; esac
[ {when} = after ] && {real} "$@" >/dev/null
kill -KILL $PPID
"""
CLIENT = """
import cloudtrain
cloudtrain.submit(cloudtrain.plan(cloudtrain.load({job!r}), "slurm", data_dir={data!r}))
"""


def runs_of(data: str | None = None) -> list[cloudtrain.Run]:
    """Return all runs of a data folder."""
    rows = cloudtrain.list_runs(data_dir=data, ask_clouds=False)
    return [cloudtrain.find_run(row["run"], data_dir=data) for row in rows]


def test_two_nodes_see_each_other(tmp_path: Path) -> None:
    run = started(job_of(tmp_path, RANKS))
    assert run.wait(HANG_SECONDS).state == "succeeded"
    assert "rank 0 of 2" in log_of(tmp_path, run)
    assert "rank 1 of 2" in log_of(tmp_path, run)


def test_digits_trains_on_two_nodes_with_two_processes_each(tmp_path: Path) -> None:
    resources = "{nodes: 2, processes: 2}"
    job = job_of(tmp_path, "", resources=resources, args="{task: digits, epochs: 2}")
    job.write_text(job.read_text().replace("entrypoint: train.py\n", ""))
    state = started(job).wait(HANG_SECONDS)
    assert state.state == "succeeded"
    assert state.ranks == {0, 1, 2, 3}
    assert state.metrics["val_accuracy"] > 0.5


def test_a_job_whose_answer_was_lost_is_found_and_runs_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    instead_of("sbatch", tmp_path, monkeypatch, LOST_ANSWER)
    with pytest.raises(CloudError, match="timed out") as unknown:
        started(job_of(tmp_path, RANKS))

    assert unknown.value.outcome is Outcome.UNKNOWN
    (run,) = runs_of()
    assert run.wait(HANG_SECONDS).state == "succeeded"
    assert len(rows_of(run)) == 1


def test_a_controller_that_was_not_reached_has_no_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = job_of(tmp_path, RANKS)
    plan = cloudtrain.plan(cloudtrain.load(job), "slurm")
    instead_of("sbatch", tmp_path, monkeypatch, NO_CONTROLLER)
    with pytest.raises(CloudError, match="connect failure") as refused:
        cloudtrain.submit(plan, issues=[])

    assert refused.value.outcome is Outcome.NOT_STARTED


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_client_that_was_killed_around_sbatch_leaves_one_job_or_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    job = job_of(tmp_path, RANKS)
    data = str(tmp_path / "data")
    instead_of("sbatch", tmp_path, monkeypatch, KILLED, when=when)
    client = CLIENT.format(job=str(job), data=data)
    killed = subprocess.run([sys.executable, "-c", client], check=False)
    assert killed.returncode == -signal.SIGKILL
    (run,) = runs_of(data)
    assert len(rows_of(run)) == (when == "after")
    if when == "after":
        assert run.wait(HANG_SECONDS).state == "succeeded"


def test_a_script_that_was_sent_twice_trains_once(tmp_path: Path) -> None:
    run = started(job_of(tmp_path, RANKS))
    answer_of("sbatch", "--parsable", str(tmp_path / "runs" / run.id / "job.sbatch"))
    assert run.wait(HANG_SECONDS).state == "succeeded"
    assert len(rows_of(run)) == 2
    answer_of("srun", "--quiet", "true")  # both jobs were before it
    assert log_of(tmp_path, run).count("rank 0 of 2") == 1


def test_secrets_are_private_while_the_job_runs_and_deleted_at_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOKEN", 'it\'s "5f1c" $HOME')
    script = "import os\nassert os.environ['KEY'] == 'it\\'s \"5f1c\" $HOME'\n"
    run = started(job_of(tmp_path, script, secrets="{KEY: {slurm: 'env:TOKEN'}}"))
    file = tmp_path / "runs" / run.id / "secrets"
    if file.exists():
        assert file.stat().st_mode & 0o777 == 0o600
    assert run.wait(HANG_SECONDS).state == "succeeded"
    assert not file.exists()
