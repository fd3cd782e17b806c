"""The scaling curve of a job, measured by real runs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import cloudtrain
from cloudtrain.runs.store import RunStore
from tests.support.in_process import call

# A scaling curve on this machine: the trainer of an earlier run, and a plain script, with one rank
# and two.

SCALED_SCRIPT = """\
import time

from cloudtrain_job import log_metrics

for step in range(1000):
    time.sleep(0.02)
    log_metrics(step=step, samples_per_s=100.0 + step % 2)
"""


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "job").mkdir()
    monkeypatch.chdir(tmp_path / "job")
    monkeypatch.setenv("CLOUDTRAIN_DATA_DIR", str(tmp_path / "data"))
    return tmp_path / "data"


@pytest.mark.thorough
def test_the_job_of_a_run_is_measured_with_one_rank_and_with_two(data: Path) -> None:
    args = {"task": "digits", "batch-size": 32, "workers": 0, "max-steps": 1}
    job = cloudtrain.load({"name": "digits", "args": args, "resources": {"processes": 2}})
    run = cloudtrain.submit(cloudtrain.plan(job, "local"))
    run.result()
    shown = call("diagnose", run.id, "--scaling", "1,2", "--json")
    assert shown.code == 0, shown.err
    report = json.loads(shown.out)
    assert [point["ranks"] for point in report["points"]] == [1, 2]
    assert all(point["samples_per_s"] > 0 for point in report["points"])
    assert report["points"][1]["communication"] is not None
    one = report["points"][0]["run"]
    assert RunStore(data).open(one).document("plan.json")["spec"]["resources"]["processes"] == 1


def test_a_script_is_ended_once_it_has_reported_often_enough(data: Path) -> None:
    Path("train.py").write_text(SCALED_SCRIPT)
    shown = call("diagnose", "train.py", "--scaling", "1,2", "--json")
    assert shown.code == 0, shown.err
    report = json.loads(shown.out)
    assert [point["samples_per_s"] for point in report["points"]] == pytest.approx([100.5, 100.5])
    assert report["verdict"].startswith("use 1 process")
