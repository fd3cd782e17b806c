"""Questions about this machine, answered by real runs: a batch size, a scaling curve."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import cloudtrain
from cloudtrain.runs.store import RunStore
from cloudtrain.sweeps.planning import plan_sweep, start_sweep
from cloudtrain.sweeps.sweep import Sweep
from tests.support.in_process import call

# A search for a batch size on this machine: memory really ends, and the size that is found trains.

LIMIT = """\
import resource
from pathlib import Path


def limit_memory(more_mb):
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    most = pages * resource.getpagesize() + (more_mb << 20)
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
"""

MODEL = """\
import ctypes

import torch
from limit import limit_memory
from torch import nn


class Wide(nn.Sequential):
    def forward(self, images):
        if self.training:  # 4 MB for each sample, as activations of a large model take them
            self.activations = None
            self.activations = torch.empty(len(images), 4 << 20, dtype=torch.uint8)
        return super().forward(images)


def model():
    ctypes.CDLL(None).mallopt(-8, 1)  # a new thread reserves no 64 MB
    limit_memory(1000)  # with the 64 MB that a trial leaves free, and what the first step imports
    return Wide(nn.Flatten(), nn.Linear(64, 10))
"""

SCRIPT = """\
import sys
import time

from limit import limit_memory

size = int(sys.argv[sys.argv.index("--batch_size") + 1])
limit_memory(190)
batch = bytearray(size << 20)
print(f"speed: {min(size, 60)} samples/s", flush=True)
time.sleep(600)  # trains on, until it is told to end
"""


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "job"
    folder.mkdir()
    for name, text in (("limit.py", LIMIT), ("wide.py", MODEL), ("train.py", SCRIPT)):
        (folder / name).write_text(text)
    monkeypatch.chdir(folder)
    monkeypatch.setenv("CLOUDTRAIN_DATA_DIR", str(tmp_path / "data"))
    return folder


def search(space: str, metric: str = "samples_per_s", **job: Any) -> Sweep:
    section = {"method": "batch_size", "objective": {"metric": metric, "goal": "maximize"}}
    key, _, written = space.partition(": ")
    spec = {"name": "sizes", **job, "sweep": {**section, "space": {key: written}}}
    return start_sweep(plan_sweep(cloudtrain.load(spec), "local", sweep_id="sizes-1"))


def test_the_trainers_largest_batch_is_found_and_its_throughput_is_measured(job: Path) -> None:
    args = {"task": "digits", "model": "wide:model", "workers": 0, "batch-size": 1024}
    sweep = search("batch-size: int(128, 256)", args=args, resources={"processes": 1})
    state = sweep.wait()
    assert state.state == "succeeded", (state.reason, [trial.reason for trial in state.trials])
    fits, beyond = state.trials
    assert (fits.batch_size, fits.state) == (128, "completed")
    assert (beyond.batch_size, beyond.state) == (256, "too_large")
    assert "can't allocate memory" in beyond.reason
    best, run = sweep.best()
    assert best.value is not None
    assert best.value > 0
    assert run.result().metrics["samples_per_s"] == best.value
    new_plan = run.plan_again()
    assert new_plan.context.trial is None, "it trains to its end"
    assert isinstance(new_plan.spec.args.values, dict)
    assert new_plan.spec.args.values["batch-size"] == best.batch_size


@pytest.mark.thorough
def test_a_script_of_ones_own_reads_its_size_and_prints_its_speed(job: Path) -> None:
    metrics = {"speed": r"speed: ([0-9.]+) samples/s"}
    script = {"entrypoint": "train.py", "metrics": metrics, "args": {"batch_size": 4}}
    sweep = search("batch_size: int(64, 256)", "speed", **script)
    state = sweep.wait()
    assert [(trial.batch_size, trial.state, trial.value) for trial in state.trials] == [
        (64, "completed", 60),
        (128, "completed", 60),
        (256, "too_large", None),
        (192, "too_large", None),
    ]
    assert "MemoryError" in state.trials[2].reason
    assert state.reason.startswith("128 fits, 192 does not; 64 is the smallest")
    _, run = sweep.best()
    assert not run.plan_again().context.resume_from, "a rerun begins anew"
    assert "4/4 trials" in call("list").out
    call("sweep", "plot", "sizes-1", "-o", "sizes.html")
    assert "does not fit" in Path("sizes.html").read_text()
    call("sweep", "export", "sizes-1", "-o", "sizes.csv")
    assert "too_large" in Path("sizes.csv").read_text()


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
