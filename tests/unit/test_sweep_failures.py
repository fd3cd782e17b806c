"""`cloudtrain diagnose` of a sweep: its failed trials by cause, and what sets their settings apart."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from cloudtrain.runs.logs import format_timestamp, log_file
from cloudtrain.runs.store import RunStore
from cloudtrain.spec.search_space import Choice, Uniform
from cloudtrain.sweeps.events import Launching, Reported, RunEnded, Suggested, SweepEnded
from cloudtrain.sweeps.failures import what_sets_apart
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


def test_failed_trials_are_shown_by_cause_with_what_sets_them_apart(sweep: SweepFolder) -> None:
    a_trial(sweep, 0, 0.1, "small")
    a_trial(sweep, 1, 0.2, "large", OOM)
    a_trial(sweep, 2, 0.3, "small", FULL)
    a_trial(sweep, 3, 0.4, "large", OOM)
    out = diagnosed(sweep)
    assert out.splitlines()[0] == f"{sweep.sweep_id}: 3 of 4 trials failed"
    memory = out.index("more memory than the GPU had left")
    disk = out.index("a disk was full")
    assert memory < disk, "the most frequent comes first"
    assert "trials      1, 3" in out[:disk]
    assert "set apart   model: large (others: small)" in out[:disk]
    assert "set apart" not in out[disk:], "of a single trial nothing is said"
    assert f"cloudtrain diagnose {sweep.sweep_id}-t001" in out


def test_they_are_json_for_scripts(sweep: SweepFolder) -> None:
    a_trial(sweep, 0, 0.1, "small", FULL)
    (group,) = json.loads(diagnosed(sweep, "--json"))["failed"]
    assert (group["trials"], group["failure"]["rule"], group["set_apart_by"]) == (
        [0],
        "disk-full",
        [],
    )


def test_where_no_trial_failed_the_best_one_is_diagnosed(sweep: SweepFolder) -> None:
    a_trial(sweep, 0, 0.1, "small")
    assert f"{sweep.sweep_id}-t000 succeeded" in diagnosed(sweep)


@pytest.mark.parametrize(
    ("failed", "remaining", "text"),
    [
        ([512, 256], [32, 64, 128], ["x: 256 or more (others: up to 128)"]),
        ([1, 2], [3.5, 4], ["x: 2 or less (others: from 3.5)"]),
        ([1, 3], [2], []),
        ([1, 2], [2, 3], []),
        (["a", "b"], ["c"], ["x: a, b (others: c)"]),
        (["a", "a"], ["a"], []),
        ([True, True], [False], ["x: True (others: False)"]),
        ([512], [32], []),
        ([512, 512], [], []),
    ],
    ids=[
        "larger",
        "smaller",
        "both sides",
        "touching",
        "other choices",
        "same",
        "a flag",
        "one trial",
        "no others",
    ],
)
def test_a_setting_sets_trials_apart_only_if_no_other_trial_is_on_that_side(
    failed: list[Any], remaining: list[Any], text: list[str]
) -> None:
    failed_settings = [{"x": value} for value in failed]
    other_settings = [{"x": value} for value in remaining]
    assert what_sets_apart(failed_settings, other_settings) == text
