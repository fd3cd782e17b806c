"""`cloudtrain diagnose` of a sweep: its failed trials by cause."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cloudtrain.runs.logs import format_timestamp, log_file
from cloudtrain.runs.store import RunStore
from cloudtrain.spec.search_space import Choice, Uniform
from cloudtrain.sweeps.events import Launching, Reported, RunEnded, Suggested, SweepEnded
from cloudtrain.sweeps.journal import SweepFolder
from tests.support.function_trials import sweep_of
from tests.support.in_process import call
from tests.support.samples import BORN, write_events

OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB"
FULL = "OSError: [Errno 28] No space left on device"


@pytest.fixture
def sweep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SweepFolder:
    monkeypatch.setenv("CLOUDTRAIN_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.chdir(tmp_path)
    definition = sweep_of(
        {"lr": Uniform(0, 1), "model": Choice(("small", "large"))}, sampler="random", trials=5
    )
    return SweepFolder.create(tmp_path / "data", definition, {"spec.yaml": "", "plan.json": "{}"})


def a_trial(sweep: SweepFolder, number: int, lr: float, model: str, failure: str = "") -> None:
    run = f"{sweep.sweep_id}-t{number:03d}"
    sweep.append(
        Suggested(time=1.0, trial=number, parameters={"lr": lr, "model": model}),
        Launching(time=1.0, trial=number, run=run),
    )
    folder = RunStore(sweep.path.parents[1]).create(
        run, {"plan.json": '{"provider": "local", "spec": {"name": "x"}}'}
    )
    state = "failed" if failure else "succeeded"
    write_events(folder, {**BORN, "time": 100.0}, {"type": "ended", "time": 160.0, "state": state})
    log_file(folder.path, 0).parent.mkdir(exist_ok=True)
    log_file(folder.path, 0).write_text(f"{format_timestamp(120.0)} [rank 0] {failure or 'done'}\n")
    if not failure:
        sweep.append(Reported(time=1.5, trial=number, report=1, value=lr))
    sweep.append(
        RunEnded(time=2.0, trial=number, run=run, outcome="failed" if failure else "completed")
    )


def diagnosed(sweep: SweepFolder, *words: str) -> str:
    sweep.append(SweepEnded(time=3.0, state="succeeded"))
    result = call("diagnose", sweep.sweep_id, *words)
    assert result.code == 0, result.err
    return result.out


def test_failed_trials_are_shown_by_cause(sweep: SweepFolder) -> None:
    a_trial(sweep, 0, 0.1, "small")
    a_trial(sweep, 1, 0.2, "large", OOM)
    a_trial(sweep, 2, 0.3, "small", FULL)
    a_trial(sweep, 3, 0.4, "large", OOM)
    out = diagnosed(sweep)
    assert out.splitlines()[0] == f"{sweep.sweep_id}: 3 of 4 trials failed"
    memory = out.index("more memory than the GPU had left")
    disk = out.index("a disk, or your share of it, was full")
    assert memory < disk, "the most frequent comes first"
    assert "trials      1, 3" in out[:disk]
    assert f"cloudtrain diagnose {sweep.sweep_id}-t001" in out


def test_they_are_json_for_scripts(sweep: SweepFolder) -> None:
    a_trial(sweep, 0, 0.1, "small", FULL)
    (group,) = json.loads(diagnosed(sweep, "--json"))["failed"]
    assert (group["trials"], group["failure"]["rule"]) == ([0], "disk-full")


def test_where_no_trial_failed_the_best_one_is_diagnosed(sweep: SweepFolder) -> None:
    a_trial(sweep, 0, 0.1, "small")
    assert f"{sweep.sweep_id}-t000 succeeded" in diagnosed(sweep)
