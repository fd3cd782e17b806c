"""One real run of an own script, watched: attach, logs with and without metrics, wait."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.command_line import CommandLine
from tests.support.limits import HANG_SECONDS

JOB = "name: own\nentrypoint: train.py\nresources: {processes: 1}\n"

TRAIN = """
import os, time
from pathlib import Path
from cloudtrain_job import activity, log_metrics, log_progress

with activity("reading"):
    print("begin", flush=True)
log_progress(step=1, steps=4, epoch=1, epochs=2, loss=1.0)
go_on = Path(os.environ["CLOUDTRAIN_OUTPUT_DIR"], "go-on")
while not go_on.exists():
    time.sleep(0.05)
for step in (2, 3, 4):
    log_metrics(step=step, loss=1 / step)
print("end", flush=True)
"""


@pytest.fixture
def cloudtrain(tmp_path: Path) -> CommandLine:
    line = CommandLine(tmp_path, modules=("warm_jobs",))
    line.write(job_yaml=JOB, train_py=TRAIN)
    return line


@pytest.mark.torchrun
def test_an_own_script_is_watched(cloudtrain: CommandLine) -> None:
    run = cloudtrain.run("submit", "--detach").out.strip()
    try:
        cloudtrain.wait_for_event(run, lambda event: event["type"] == "progress")
        attached = cloudtrain.start("attach", run)
        assert attached.stderr is not None
        first = attached.stderr.readline()
        assert first == "  begin\n", "it shows the lines that were there, and then what comes"
        (cloudtrain.run_folder(run) / "output" / "go-on").write_text("")
        remaining = attached.communicate(timeout=HANG_SECONDS)[1]
    finally:
        (cloudtrain.run_folder(run) / "output" / "go-on").write_text("")
        cloudtrain.run("wait", run)
        cloudtrain.close()
    assert attached.returncode == 0
    assert [
        line in (first + remaining).splitlines()
        for line in ("  begin", "  step 2  loss 0.5", "  end")
    ] == [True] * 3
    assert "succeeded in" in remaining
    logs = cloudtrain.run("logs", run).out.splitlines()
    assert logs[:2] == ["[rank 0] begin", "[rank 0] epoch 1/2  step 1/4  loss 1"]
    assert logs[2:6] == [
        *(f"[rank 0] step {step}  loss {1 / step:.4g}" for step in (2, 3, 4)),
        "[rank 0] end",
    ]
    printed = cloudtrain.run("logs", run, "--no-metrics", "--rank", "0").out.splitlines()
    assert printed == ["begin", "end"]
    activities = [
        event["activity"] for event in cloudtrain.events(run) if event["type"] == "activity"
    ]
    assert activities == ["reading", ""]
