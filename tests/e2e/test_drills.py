"""The example of drills, on real jobs."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.repo.tools import ROOT
from tests.support.command_line import CommandLine

pytestmark = [pytest.mark.torchrun, pytest.mark.linux("processes are found in /proc")]

COUNTER = """
import json, os, sys, time
from pathlib import Path
from cloudtrain_job import log_metrics

folder = Path(os.environ["CLOUDTRAIN_CHECKPOINT_DIR"])
saved = folder / "state.json"
is_drilled = not saved.exists() and len(list(folder.parents[1].glob("*/checkpoints"))) > 1
state = json.loads(saved.read_text()) if saved.exists() else {"step": 0, "value": 1}
while state["step"] < 40:
    state = {"step": state["step"] + 1, "value": state["value"] * 31 % 1009}
    time.sleep(0.01)
    if state["step"] % 5 == 0:
        (folder / "state.tmp").write_text(json.dumps(state))
        (folder / "state.tmp").replace(saved)
        # Whatever has been reported has been saved: a kill loses no reported step.
        log_metrics(step=state["step"], value=state["value"])
    while is_drilled and state["step"] >= 20:
        time.sleep(0.01)
Path(os.environ["CLOUDTRAIN_MODEL_DIR"], "model.json").write_text(json.dumps(state["value"]))
"""
"""A job for drills: one process without torch, which learns nothing and resumes.

A drilled run waits for its fault in its middle, however late that comes.
"""


def drilled(cli: CommandLine, *flags: str) -> tuple[int, dict[str, str], str]:
    """Drill the job of the folder; return the exit code, a line for each fault, and stderr."""
    program = str(ROOT / "examples/drill/drill.py")
    done = subprocess.run(
        [sys.executable, program, "job.yaml", "--data-dir", str(cli.data), *flags],
        cwd=cli.folder / "job",
        env=cli.environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    lines = dict(line.split(maxsplit=1) for line in done.stdout.splitlines())
    return done.returncode, lines, done.stderr


def test_a_ready_job_recovers_and_a_reader_of_half_a_checkpoint_fails(cli: CommandLine) -> None:
    cli.write(job_yaml="name: count\nentrypoint: train.py\n", train_py=COUNTER)
    flags = ("--set", "limits.restarts=1", "--only", "checkpoint-torn,rank-killed")
    code, lines, errors = drilled(cli, *flags)
    assert code == 0, errors
    assert lines["rank-killed"].startswith("recovered; restarts in place: 1; reported steps")
    assert lines["rank-killed"].endswith(" 0")
    assert "rank 0 (node 0) raised JSONDecodeError" in lines["checkpoint-torn"]
    assert cli.processes() == []


@pytest.mark.thorough
def test_all_drills_of_the_trainer_end_with_the_same_parameters(cli: CommandLine) -> None:
    job = "name: count\nargs: {epochs: 4}\nresources: {processes: 2}\nlimits: {restarts: 1}\n"
    cli.write(job_yaml=job)
    code, lines, errors = drilled(cli)
    assert code == 0, (lines, errors)
    assert cli.processes() == []
