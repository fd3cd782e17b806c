"""Stop, kill and resume, with the shared trainer: nothing is lost, and the end is the same to the bit."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.workbench import Bench

pytestmark = pytest.mark.torchrun

JOB = """
name: digits
args: {epochs: 6, checkpoint-every-steps: 5, seed: 3}
resources: {processes: 2}
"""


def result_of(bench: Bench, run: str) -> dict[str, Any]:
    state = bench.json("status", run)
    assert isinstance(state["result"], dict), state
    return state["result"]


def test_a_stopped_run_and_one_whose_supervisor_was_killed_both_end_like_one_never_touched(bench: Bench) -> None:
    bench.write(job_yaml=JOB)

    whole = bench.run("submit", "--run-id", "whole-1")
    assert whole.code == 0, whole.err
    expected = result_of(bench, "whole-1")["parameters_sha256"]

    bench.run("submit", "--run-id", "stop-1", "--detach")
    bench.await_event("stop-1", lambda e: e["type"] == "checkpoint" and e["step"] >= 20)
    stopped = bench.run("stop", "stop-1")
    assert stopped.code == 5, stopped.err
    state = bench.json("status", "stop-1")
    assert state["state"] == "stopped"
    assert state["checkpoint"]["step"] == state["result"]["step"], "the checkpoint is of the step they stopped at"
    again = bench.run("rerun", "stop-1", "--detach")
    assert bench.run("wait", again.out.strip()).code == 0
    resumed = bench.json("status", again.out.strip())
    assert resumed["resumed"]["step"] == state["checkpoint"]["step"]
    assert resumed["result"]["parameters_sha256"] == expected

    bench.run("submit", "--run-id", "kill-1", "--detach")
    bench.await_event("kill-1", lambda e: e["type"] == "checkpoint" and e["step"] >= 20)
    pid = int((bench.run_folder("kill-1") / "supervisor.lock").read_text())
    os.kill(pid, signal.SIGKILL)
    waited = bench.run("wait", "kill-1")
    assert waited.code == 1
    assert "supervisor is gone" in waited.err
    assert "have been ended" not in waited.err, "the launchers stopped by themselves, in good order"
    assert any(e["type"] == "node_started" and not Path(e["scratch"]).exists() for e in bench.events("kill-1"))
    assert bench.processes() == []
    again = bench.run("rerun", "kill-1")
    assert again.code == 0, again.err
    assert "resumed from the checkpoint of step" in again.err
    assert result_of(bench, "last")["parameters_sha256"] == expected


def test_a_rerun_of_a_success_starts_afresh(bench: Bench) -> None:
    bench.write(job_yaml=JOB.replace("epochs: 6", "epochs: 1"))
    assert bench.run("submit", "--run-id", "done-1").code == 0
    again = bench.json("rerun", "done-1")
    assert (again["state"], again["resumed"]) == ("succeeded", None)


def test_a_rerun_leaves_the_checkpoints_of_the_run_before_as_they_are(bench: Bench) -> None:
    bench.write(
        job_yaml="name: mine\nentrypoint: train.py\n",
        train_py="import os, sys\nfrom pathlib import Path\n"
        "folder = Path(os.environ['CLOUDTRAIN_CHECKPOINT_DIR'])\nfile = folder / 'latest.pt'\n"
        "print('found', file.read_text() if file.exists() else None)\n"
        "with file.open('w') as out:\n    out.write(os.environ['CLOUDTRAIN_RUN_ID'])\n"
        "if not (folder / 'link').is_symlink():\n    (folder / 'link').symlink_to('gone')\n"
        "sys.exit(1)\n",
    )
    bench.run("submit", "--run-id", "mine-1")
    again = bench.run("rerun", "mine-1")
    assert "found mine-1" in again.err
    assert (bench.run_folder("mine-1") / "checkpoints" / "latest.pt").read_text() == "mine-1"
    refused = bench.run("rerun", "mine-1", "--provider", "gcp")
    assert refused.code == 2
    assert "there is no provider 'gcp' here" in refused.err
