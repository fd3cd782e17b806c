"""Sweeps of real runs on this machine: drivers that are killed, and the runs that they had started."""

from __future__ import annotations

import json
import os
import signal
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

import cloudtrain
from cloudtrain.submission.lookup import list_runs
from cloudtrain.sweeps.journal import DRIVER_LOCK, JOURNAL, Reported, RunEnded, Suggested
from cloudtrain.sweeps.planning import plan_sweep, start_sweep
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

LEARNER = """\
import os
import signal
import sys
import time
from pathlib import Path

import cloudtrain_job

saved = Path(os.environ["CLOUDTRAIN_CHECKPOINT_DIR"], "epoch")
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
x = float(sys.argv[sys.argv.index("--x") + 1])
for epoch in range(int(saved.read_text()) + 1 if saved.exists() else 1, 5):
    saved.write_text(str(epoch))
    cloudtrain_job.log_metrics(step=epoch, score=x - 1 / epoch)
    while epoch in (1, 2) and (x < 1 or "--wait" in sys.argv):  # for the end that they are told at a rung
        time.sleep(0.01)
"""

SPEC: dict[str, Any] = {
    "name": "parabola",
    "entrypoint": "train.py",
    "sweep": {
        "objective": {"metric": "score", "goal": "maximize"},
        "method": "random",
        "space": {"x": "uniform(0, 1)"},
        "trials": 4,
    },
}
KILLS = 6
FEW_KILLS = 2
"""With `--thorough`, and without."""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    job = tmp_path / "job"
    job.mkdir()
    (job / "train.py").write_text(SCRIPT)
    monkeypatch.chdir(job)
    return tmp_path / "data"


def start(
    folder: Path, name: str, arguments: Mapping[str, Any] = MappingProxyType({}), **section: Any
) -> Sweep:
    spec = {**SPEC, "args": dict(arguments), "sweep": {**SPEC["sweep"], **section}}
    plan = plan_sweep(cloudtrain.load(spec), "local", sweep_id=name, data_dir=str(folder / name))
    return start_sweep(plan)


def summary_of(sweep: Sweep) -> list[tuple[Any, ...]]:
    """Return the suggestions, the reports, and the ends of the runs, in the order of the journal."""
    entries: list[tuple[Any, ...]] = []
    for event, _ in sweep.folder.events_from():
        match event:
            case Suggested():
                entries.append(("suggested", event.trial, event.parameters["x"]))
            case Reported():
                entries.append(("reported", event.trial, event.report, event.value))
            # A submission that was killed has started nothing.
            case RunEnded() if event.outcome != "interrupted":
                entries.append(("ended", event.trial, event.outcome))
    return entries


def expected(sweep: Sweep) -> Iterator[tuple[Any, ...]]:
    """The same of a sweep whose driver is never killed, by the function that the script computes."""
    suggester = suggester_of(sweep.definition)
    state = SweepState.new(sweep.definition)
    for trial in range(sweep.definition.trials):
        values = suggester.suggest(state)
        state.apply(Suggested(time=1.0, trial=trial, parameters=values))
        x = float(values["x"])
        yield ("suggested", trial, x)
        for epoch in (1, 2):
            yield ("reported", trial, epoch, -((x - 0.3) ** 2) - 1 / epoch)
        yield ("ended", trial, "completed")


def size_of(sweep: Sweep) -> int:
    journal = sweep.folder.path / JOURNAL
    return journal.stat().st_size if journal.exists() else 0


def kill_driver(sweep: Sweep) -> None:
    """Kill the process that drives it now; nothing when there is none."""
    if sweep.folder.is_driven():
        os.kill(json.loads((sweep.folder.path / DRIVER_LOCK).read_bytes())["pid"], signal.SIGKILL)
        eventually(lambda: not sweep.folder.is_driven())


def test_killed_drivers_change_nothing(folder: Path, thorough: bool) -> None:
    sweep = start(folder, "killed")
    size = 0
    kills = 0
    selected = KILLS if thorough else FEW_KILLS
    while kills < selected and not sweep.status().ended:
        eventually(lambda: size_of(sweep) > size)  # noqa: B023
        kill_driver(sweep)
        size = size_of(sweep)
        kills = kills + 1
        sweep.start_driver()
    state = sweep.wait()
    assert kills == selected
    assert summary_of(sweep) == [*expected(sweep)]
    assert (state.state, state.reason) == ("succeeded", "")
    runs = list_runs(data_dir=str(folder / "killed"))
    whole = Counter(run["run"][: len("killed-t000")] for run in runs if run["state"] == "succeeded")
    assert whole == Counter(f"killed-t{number:03}" for number in range(4))
    best, run = sweep.best()
    assert best.value == max(trial.value or -9 for trial in state.trials)
    assert run.result().metrics["score"] == best.value


@pytest.mark.linux("when a process began, in /proc")
def asha(
    folder: Path, name: str, promote: str, values: list[float], **arguments: Any
) -> SweepState:
    """Run a grid, one trial after the other, with rungs after the first and second of 4 reports."""
    Path("train.py").write_text(LEARNER)
    return start(
        folder,
        name,
        arguments,
        method="grid",
        space={"x": values},
        trials=len(values),
        early_stopping={"grace": 1, "eta": 2, "max": 4, "promote": promote},
    ).wait()


@pytest.mark.thorough  # tests/e2e/test_trials.py ends one of each provider
def test_trials_that_are_behind_at_a_rung_end_there_by_themselves(folder: Path) -> None:
    state = asha(folder, "stopping", "never", [1, 0.9])
    assert [(trial.state, trial.reports) for trial in state.trials] == [
        ("completed", 4),
        ("pruned", 1),
    ]


def test_trials_wait_at_their_rung_and_the_best_come_back_from_their_checkpoints(
    folder: Path,
) -> None:
    state = asha(folder, "promoting", "always", [1, 0.9, 2, 0.8], wait=True)
    assert [(trial.state, trial.reports, len(trial.runs)) for trial in state.trials] == [
        ("paused", 2, 2),
        ("paused", 1, 1),
        ("completed", 4, 3),
        ("paused", 1, 1),
    ]
    assert [round(value, 3) for value in state.trials[2].curve] == [1.0, 1.5, 1.667, 1.75]
