"""`cloudtrain check --forecast` with real processes: it runs the first steps here and removes them."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.command_line import CommandLine
from tests.support.waiting import HANG_SECONDS, eventually

JOB = "name: own\nentrypoint: train.py\nresources: {processes: 1}\nlimits: {restarts: 3}\n"

TRAIN = """
import os, sys, time
from pathlib import Path
from cloudtrain_job import log_metrics, log_progress

kind = sys.argv[1]
Path(os.environ["BEGUN"]).write_text(str(os.getpid()))
if kind == "fails":
    raise ValueError("no such data")
steps = {"short": 5, "endless": 100_000, "silent": 100_000}[kind]
for step in range(1, steps + 1):
    time.sleep(0.02)
    if kind == "silent":
        log_metrics(step=step, loss=1 / step)
    else:
        log_progress(step, steps)
"""


@pytest.fixture
def cloudtrain(tmp_path: Path) -> Iterator[CommandLine]:
    (tmp_path / "tmp").mkdir()
    line = CommandLine(
        tmp_path, env={"TMPDIR": str(tmp_path / "tmp"), "BEGUN": str(tmp_path / "begun")}
    )
    line.write(job_yaml=JOB, train_py=TRAIN)
    yield line
    line.close()
    assert [path.name for path in (tmp_path / "tmp").glob("cloudtrain-forecast-*")] == []
    assert not (line.data / "runs").exists()


@pytest.mark.torchrun
def test_the_first_steps_here_tell_how_long_the_whole_job_takes(cloudtrain: CommandLine) -> None:
    result = cloudtrain.run(
        "check", "--forecast", "2", "--set", "limits.max_runtime=1 min", "--", "endless"
    )
    assert "forecast: on this machine " in result.out
    assert " in all (" in result.out
    assert "limits.max_runtime will stop this run after 1 min, at about step " in result.out


@pytest.mark.torchrun
def test_a_job_that_ends_meanwhile_is_measured(cloudtrain: CommandLine) -> None:
    forecast = json.loads(cloudtrain.run("check", "--forecast=20", "--json", "--", "short").out)[
        "forecast"
    ]
    assert 0 < forecast["measured_seconds"] < 60
    assert (forecast["here"], forecast["reason"]) == (None, "")


@pytest.mark.torchrun
def test_a_job_that_fails_says_why(cloudtrain: CommandLine) -> None:
    result = cloudtrain.run("check", "--forecast", "--", "fails")
    assert result.code == 1
    assert (
        "the first steps failed here: rank 0 (node 0) raised ValueError: no such data" in result.err
    )
    assert "train.py:9" in result.err
    assert "Traceback" not in result.err


@pytest.mark.torchrun
def test_an_interrupt_ends_the_job_and_leaves_nothing(cloudtrain: CommandLine) -> None:
    checking = cloudtrain.start("check", "--forecast", "600", "--", "endless")
    eventually((cloudtrain.folder / "begun").exists)
    checking.send_signal(signal.SIGINT)
    _, errors = checking.communicate(timeout=HANG_SECONDS)
    assert checking.returncode == 130
    assert "interrupted; the job was ended, and its files are removed" in errors
    pid = int((cloudtrain.folder / "begun").read_text())
    assert not Path(f"/proc/{pid}").exists()
