"""One sweep by real Ray on this machine: trials are ordinary runs, a killed driver loses none, a
stop ends all.

How a driver and a cluster may die is shown without Ray by tests/unit/test_ray_trials.py.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

import cloudtrain
from cloudtrain.sweeps.journal import RunEnded
from cloudtrain.sweeps.planning import plan_sweep, start_sweep
from cloudtrain.sweeps.sweep import Sweep, list_sweeps
from tests.e2e.test_sweeps import kill_driver
from tests.support.waiting import eventually

pytestmark = pytest.mark.skipif(
    find_spec("ray") is None, reason="Ray is not installed: pip install 'cloudtrain[ray]'"
)

SCRIPT = """
import os, sys, time
from pathlib import Path
from cloudtrain_job import log_metrics
saved = Path(os.environ["CLOUDTRAIN_CHECKPOINT_DIR"], "epoch")
x = float(sys.argv[sys.argv.index("--x") + 1])
for epoch in range(int(saved.read_text()) + 1 if saved.exists() else 1, 5):
    saved.write_text(str(epoch))
    log_metrics(epoch=epoch, score=x - 1 / epoch)
    while (epoch == 2 and x < 0.5) or (epoch == 3 and x > 0.5):  # for ever: they are ended from outside
        time.sleep(0.02)
"""
"""The first trial trains to its end, the second is behind it at its rung, the others wait after
their third epoch.
"""
SPEC: dict[str, Any] = {
    "name": "rays",
    "entrypoint": "train.py",
    "sweep": {
        "objective": {"metric": "score", "goal": "maximize"},
        "method": "grid",
        "space": {"x": [0.5, 0.3, 0.9, 0.8]},
        "early_stopping": {"grace": 2, "max": 4},
        "engine": "ray",
    },
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The data folder; Ray's own is short, as the names of its sockets are."""
    job = tmp_path / "job"
    job.mkdir()
    (job / "train.py").write_text(SCRIPT)
    monkeypatch.chdir(job)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    rays = tempfile.mkdtemp(prefix="ray-")
    monkeypatch.setenv("RAY_TMPDIR", rays)
    monkeypatch.setenv("RAY_prestart_worker_first_driver", "0")  # two that nobody would need
    yield tmp_path / "data"
    for sweep in list_sweeps(data_dir=str(tmp_path / "data")):
        kill_driver(sweep)
    shutil.rmtree(rays, ignore_errors=True)


def started(folder: Path) -> Sweep:
    return start_sweep(plan_sweep(cloudtrain.load(SPEC), "local", data_dir=str(folder)))


def outcomes(sweep: Sweep) -> list[tuple[int, str]]:
    return [
        (event.trial, event.outcome)
        for event, _ in sweep.folder.events_from()
        if isinstance(event, RunEnded)
    ]


def processes_of(folder: Path) -> list[Path]:
    """Processes that Ray, a driver or a run has started for a sweep below this folder, in /proc."""
    marks = (str(folder).encode(), os.environ["RAY_TMPDIR"].encode())
    leaks = []
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            text = (process / "environ").read_bytes() + (process / "cmdline").read_bytes()
            if process.name != str(os.getpid()) and any(mark in text for mark in marks):
                leaks.append(process)
    return leaks


def is_running(process: Path) -> bool:
    with suppress(OSError):
        return (process / "cmdline").read_bytes() != b""
    return False


@pytest.mark.linux("Ray's processes are found by /proc")
@pytest.mark.torchrun
@pytest.mark.thorough
def test_ray_sweep_survives_a_killed_driver_and_ends_when_stopped(
    folder: Path,
) -> None:
    sweep = started(folder)

    def waits(number: int) -> bool:
        trials = sweep.status().trials
        return (
            len(trials) > number
            and trials[number].state == "running"
            and trials[number].reports == 3
        )

    eventually(lambda: waits(2))
    first, second, third = sweep.status().trials
    assert outcomes(sweep) == [(0, "completed"), (1, "pruned")]
    assert (first.curve, second.curve) == (
        [0.5 - 1, 0.5 - 1 / 2, 0.5 - 1 / 3, 0.5 - 1 / 4],
        [0.3 - 1, 0.3 - 1 / 2],
    )
    assert (sweep.run_of(first).status().state, sweep.run_of(second).status().state) == (
        "succeeded",
        "succeeded",
    )

    kill_driver(sweep)
    eventually(lambda: not sweep.folder.is_driven())  # its threads end later
    sweep.start_driver()
    eventually(lambda: waits(3))
    assert outcomes(sweep)[2:] == [(2, "interrupted"), (2, "completed")]
    # It continued with the fourth epoch.
    assert [run.resumes for run in third.runs] == [
        "",
        third.runs[0].run,
    ]
    assert third.curve == [0.9 - 1, 0.9 - 1 / 2, 0.9 - 1 / 3, 0.9 - 1 / 4]

    assert sweep.stop().state == "stopped"
    assert outcomes(sweep)[4:] == [(3, "stopped")]
    assert sweep.best()[0].number == 2
    assert sweep.status().trials[3].curve == [0.8 - 1, 0.8 - 1 / 2, 0.8 - 1 / 3]
    # The driver itself, and the processes of the killed one, which Ray ends later.
    ending = processes_of(folder)
    eventually(lambda: not any(map(is_running, ending)))
    assert processes_of(folder) == []
