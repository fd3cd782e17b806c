"""How jobs on a real Slurm end: failures of one node, stops, limits, restarts."""

from __future__ import annotations

from pathlib import Path

from tests.slurm.cluster import (
    NEEDS_SLURM,
    answer_of,
    counts_until,
    job_of,
    kill_daemon_of_node_1,
    log_of,
    rows_of,
    start_daemon_of_node_1,
    started,
    steps_of,
)
from tests.support.waiting import HANG_SECONDS, eventually

pytestmark = NEEDS_SLURM

FAILS_ON_NODE_1 = """
import os, time
if os.environ["RANK"] == "1":
    raise ValueError("only here")
time.sleep(3600)
"""
SLEEPS = "import time\nprint('sleeps', flush=True)\ntime.sleep(3600)\n"


def test_a_failure_on_one_node_ends_the_other_and_is_named(tmp_path: Path) -> None:
    state = started(job_of(tmp_path, FAILS_ON_NODE_1)).wait(HANG_SECONDS)
    assert state.state == "failed"
    assert state.error is not None
    assert (state.error.node, state.error.message) == (1, "only here")


def test_a_waiting_job_leaves_the_queue_when_it_is_stopped(tmp_path: Path) -> None:
    run = started(job_of(tmp_path, SLEEPS, ", partition: closed"))
    assert "its partition is down" in eventually(lambda: run.status().phase)
    run.stop()
    assert run.wait(HANG_SECONDS).state == "stopped"
    assert rows_of(run, "%T") == ["CANCELLED"]


def test_a_job_that_somebody_cancels_is_stopped_by_them(tmp_path: Path) -> None:
    run = started(job_of(tmp_path, SLEEPS))
    eventually(lambda: log_of(tmp_path, run).count("sleeps") == 2)
    answer_of("scancel", *rows_of(run))
    state = run.wait(HANG_SECONDS)
    assert state.state == "stopped"
    assert "cancelled by scancel" in state.reason


def test_a_limit_of_slurm_stops_the_job_ahead(tmp_path: Path) -> None:
    run = started(job_of(tmp_path, SLEEPS))
    eventually(lambda: log_of(tmp_path, run).count("sleeps") == 2)
    answer_of("scancel", "--batch", "--signal=USR1", *rows_of(run))  # as --signal=B:USR1@… does
    state = run.wait(HANG_SECONDS)
    assert state.state == "stopped"
    assert "the time limit is near" in log_of(tmp_path, run)


def test_a_requeued_job_goes_on_from_its_checkpoint(tmp_path: Path) -> None:
    finish = tmp_path / "finish"
    run = started(job_of(tmp_path, counts_until(finish), limits="{retries: 1}"))
    eventually(lambda: steps_of(tmp_path, run) > 2)
    answer_of("scontrol", "requeue", *rows_of(run))
    eventually(lambda: log_of(tmp_path, run).count("begins at") == 4)
    finish.touch()
    assert run.wait(HANG_SECONDS).state == "succeeded"
    assert log_of(tmp_path, run).count("begins at 0\n") == 2


def test_a_job_that_has_succeeded_does_not_train_again_for_a_controller_that_lost_its_end(
    tmp_path: Path,
) -> None:
    run = started(job_of(tmp_path, "print('trains')\n", limits="{retries: 1}"))
    eventually(lambda: rows_of(run, "%T") == ["COMPLETED"])
    answer_of("scontrol", "requeue", *rows_of(run))
    eventually(lambda: "Restarts=1" in answer_of("scontrol", "show", "job", *rows_of(run)))
    eventually(lambda: rows_of(run, "%T") == ["COMPLETED"])
    assert run.wait(HANG_SECONDS).state == "succeeded"
    assert log_of(tmp_path, run).count("] trains") == 2


def test_a_job_that_slurm_warns_of_a_preemption_is_queued_again(tmp_path: Path) -> None:
    finish = tmp_path / "finish"
    run = started(job_of(tmp_path, counts_until(finish), limits="{retries: 1}"))
    eventually(lambda: steps_of(tmp_path, run) > 2)
    answer_of("scancel", "--signal=TERM", *rows_of(run))  # as GraceTime does
    eventually(lambda: log_of(tmp_path, run).count("begins at") == 4)
    finish.touch()
    assert run.wait(HANG_SECONDS).state == "succeeded"
    assert log_of(tmp_path, run).count("begins at 0\n") == 2


def test_a_job_restarts_as_often_as_retries_say(tmp_path: Path) -> None:
    run = started(job_of(tmp_path, SLEEPS, limits="{retries: 1}"))
    for times in (2, 4):
        eventually(lambda: log_of(tmp_path, run).count("sleeps") == times)  # noqa: B023
        answer_of("scontrol", "requeue", *rows_of(run))

    state = run.wait(HANG_SECONDS)
    assert state.state == "failed"
    assert "limits.retries" in state.reason


def test_the_time_limit_counts_all_attempts(tmp_path: Path) -> None:
    job = job_of(tmp_path, SLEEPS, ", request: {hold: true}", limits="{max_runtime: 1 h}")
    run = started(job)
    (tmp_path / "runs" / run.id / "used").write_text("3599")
    answer_of("scontrol", "release", *rows_of(run))
    state = run.wait(HANG_SECONDS)
    assert (state.state, state.reason) == ("stopped", "the time limit was near")


def test_a_lost_node_costs_no_checkpoint_and_its_ranks_write_none(tmp_path: Path) -> None:
    finish = tmp_path / "finish"
    (tmp_path / "key").write_text("5f1c")
    secrets = f"{{KEY: {{slurm: 'file:{tmp_path}/key'}}}}"  # the second attempt needs them, too
    run = started(job_of(tmp_path, counts_until(finish), limits="{retries: 1}", secrets=secrets))
    eventually(lambda: steps_of(tmp_path, run) > 2)
    kill_daemon_of_node_1()  # its ranks continue
    eventually(lambda: rows_of(run, "%T") == ["PENDING"])
    start_daemon_of_node_1()
    eventually(lambda: log_of(tmp_path, run).count("begins at") == 4)
    assert not (tmp_path / "runs" / run.id / "checkpoints-0").exists()
    finish.touch()
    assert run.wait(HANG_SECONDS).state == "succeeded"
    assert log_of(tmp_path, run).count("begins at 0\n") == 2
