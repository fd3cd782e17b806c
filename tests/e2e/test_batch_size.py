"""A search for a batch size on this machine: memory really ends, and the size that is found trains."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import cloudtrain
from cloudtrain.sweeps.planning import plan_sweep, start_sweep
from cloudtrain.sweeps.sweep import Sweep
from tests.support.in_process import call

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
