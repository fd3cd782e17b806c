"""Sweeps of real runs on this machine: drivers that are killed, and the runs that they had started."""

from __future__ import annotations

import json
import os
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import cloudtrain
from cloudtrain.api.lookup import list_runs
from cloudtrain.sweeps.events import Reported, RunEnded, Suggested
from cloudtrain.sweeps.journal import DRIVER_LOCK, JOURNAL
from cloudtrain.sweeps.planning import plan_sweep
from cloudtrain.sweeps.start import start_sweep
from cloudtrain.sweeps.state import SweepState
from cloudtrain.sweeps.suggest import suggester_of
from cloudtrain.sweeps.sweep import Sweep
from tests.support.waiting import eventually

SCRIPT = """\
import sys

import cloudtrain_job

x = float(sys.argv[sys.argv.index("--x") + 1])
for epoch in (1, 2):
    cloudtrain_job.log_metrics(step=epoch, score=-((x - 0.3) ** 2) - 1 / epoch)
"""

SPEC: dict[str, Any] = {
    "name": "parabola",
    "entrypoint": "train.py",
    "sweep": {
        "objective": {"metric": "score", "goal": "maximize"},
        "method": "random",
        "space": {"x": "uniform(0, 1)"},
        "trials": 7,
    },
}
KILLS = 10


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    job = tmp_path / "job"
    job.mkdir()
    (job / "train.py").write_text(SCRIPT)
    monkeypatch.chdir(job)
    return tmp_path / "data"


def start(folder: Path, name: str, **section: Any) -> Sweep:
    spec = {**SPEC, "sweep": {**SPEC["sweep"], **section}}
    plan = plan_sweep(cloudtrain.load(spec), "local", sweep_id=name, data_dir=str(folder / name))
    return start_sweep(plan)


def told(sweep: Sweep) -> list[tuple[Any, ...]]:
    """What was suggested, what was reported, and how the runs ended, in the order of the journal."""
    found: list[tuple[Any, ...]] = []
    for event, _ in sweep.folder.events_from():
        match event:
            case Suggested():
                found.append(("suggested", event.trial, event.parameters["x"]))
            case Reported():
                found.append(("reported", event.trial, event.report, event.value))
            case RunEnded():
                found.append(("ended", event.trial, event.run, event.outcome))
    return found


def expected(sweep: Sweep) -> Iterator[tuple[Any, ...]]:
    """The same of a sweep whose driver is never killed, by the function that the script computes."""
    suggester, state = suggester_of(sweep.definition), SweepState.new(sweep.definition)
    for trial in range(sweep.definition.trials):
        values = suggester.suggest(state)
        state.apply(Suggested(time=1.0, trial=trial, parameters=values))
        x = float(values["x"])
        yield ("suggested", trial, x)
        for epoch in (1, 2):
            yield ("reported", trial, epoch, -((x - 0.3) ** 2) - 1 / epoch)
        yield ("ended", trial, f"{sweep.id}-t{trial:03}", "completed")


def size_of(sweep: Sweep) -> int:
    journal = sweep.folder.path / JOURNAL
    return journal.stat().st_size if journal.exists() else 0


def kill_driver(sweep: Sweep) -> None:
    """Kill the process that drives it now; nothing when there is none."""
    if sweep.folder.is_driven():
        os.kill(json.loads((sweep.folder.path / DRIVER_LOCK).read_bytes())["pid"], signal.SIGKILL)
        eventually(lambda: not sweep.folder.is_driven())


def test_ten_killed_drivers_change_nothing(folder: Path) -> None:
    sweep, size, kills = start(folder, "killed"), 0, 0
    while kills < KILLS and not sweep.status().ended:
        eventually(lambda: size_of(sweep) > size)  # noqa: B023
        kill_driver(sweep)
        size, kills = size_of(sweep), kills + 1
        sweep.start_driver()
    state = sweep.wait()
    assert kills == KILLS
    assert told(sweep) == [*expected(sweep)]
    assert (state.state, state.reason) == ("succeeded", "")
    runs = Counter(run["run"] for run in list_runs(data_dir=str(folder / "killed")))
    assert runs == Counter(f"killed-t{number:03}" for number in range(7))
    best, run = sweep.best()
    assert best.value == max(trial.value or -9 for trial in state.trials)
    assert run.result().metrics["score"] == best.value
