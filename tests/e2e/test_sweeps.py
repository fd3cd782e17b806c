"""Sweeps of real runs on this machine: drivers that are killed, and the runs that they had started."""

from __future__ import annotations

import json
import os
import signal
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest

from cloudtrain.api.listing import list_runs
from cloudtrain.sweeps.journal import (
    DRIVER_LOCK,
    JOURNAL,
    Reported,
    RunEnded,
    Suggested,
    SweepFolder,
)
from cloudtrain.sweeps.state import SweepState
from cloudtrain.sweeps.suggest import suggester_of
from cloudtrain.sweeps.sweep import Sweep
from cloudtrain_wire.process_identity import ProcessIdentity
from pages import DOCS, blocks
from tests.support.command_line import Command, CommandLine
from tests.support.waiting import HANG_SECONDS, eventually

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
WITHOUT_TORCHRUN = {"launcher": "none", "entrypoint": "python train.py"}
"""Spares each trial the import of torch."""
KILLS = 6
FEW_KILLS = 2
"""With `--thorough`, and without."""


def start(
    cli: CommandLine, sweep_id: str, script: str, job: dict[str, Any], **section: Any
) -> Command:
    """Start a sweep and follow it."""
    spec = {**SPEC, **job, "sweep": {**SPEC["sweep"], **section}}
    cli.write(job_yaml=json.dumps(spec), train_py=script)
    return cli.start("sweep", "start", "--sweep-id", sweep_id)


def sweep_of(cli: CommandLine, sweep_id: str) -> Sweep:
    return Sweep(SweepFolder(cli.data / "sweeps" / sweep_id))


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


def driver_of(sweep: Sweep) -> ProcessIdentity | None:
    """Return the process that drives it now; None until it has written who it is."""
    lock = sweep.folder.path / DRIVER_LOCK
    text = lock.read_text() if lock.exists() else ""
    driver = ProcessIdentity.from_json(json.loads(text or "null"))
    return driver if driver is not None and driver.is_alive() else None


def kill_driver(sweep: Sweep) -> None:
    """Kill the process that drives it now; nothing when there is none.

    The next one may have the lock before anybody sees it free.
    """
    eventually(lambda: driver_of(sweep) or not sweep.folder.is_driven())
    driver = driver_of(sweep)
    if driver is not None:
        with suppress(ProcessLookupError):
            os.kill(driver.pid, signal.SIGKILL)
        eventually(lambda: driver.is_alive() is False)


def test_killed_drivers_change_nothing(cli: CommandLine, thorough: bool) -> None:
    """Who follows the sweep replaces them."""
    follower = start(cli, "killed", SCRIPT, {})
    eventually((cli.data / "sweeps" / "killed" / JOURNAL).exists)
    sweep = sweep_of(cli, "killed")
    size = 0
    kills = KILLS if thorough else FEW_KILLS
    for _ in range(kills):
        eventually(lambda: size_of(sweep) > size and sweep.folder.is_driven())  # noqa: B023
        assert not sweep.status().ended
        kill_driver(sweep)
        size = size_of(sweep)
    _, told = follower.communicate(timeout=HANG_SECONDS)
    assert follower.returncode == 0, told
    state = sweep.status()
    assert summary_of(sweep) == [*expected(sweep)]
    assert (state.state, state.reason) == ("succeeded", "")
    runs = list_runs(data_dir=str(cli.data))
    whole = Counter(run["run"][: len("killed-t000")] for run in runs if run["state"] == "succeeded")
    assert whole == Counter(f"killed-t{number:03}" for number in range(4))
    best, run = sweep.best()
    assert best.value == max(trial.value or -9 for trial in state.trials)
    assert run.result().metrics["score"] == best.value


def asha(
    cli: CommandLine, sweep_id: str, promote: str, values: list[float], **args: bool
) -> SweepState:
    """Run a grid, one trial after the other, with rungs after the first and second of 4 reports."""
    follower = start(
        cli,
        sweep_id,
        LEARNER,
        {**WITHOUT_TORCHRUN, "args": args},
        method="grid",
        space={"x": values},
        trials=len(values),
        early_stopping={"grace": 1, "eta": 2, "max": 4, "promote": promote},
    )
    _, told = follower.communicate(timeout=HANG_SECONDS)
    assert follower.returncode == 0, told
    return sweep_of(cli, sweep_id).status()


@pytest.mark.thorough  # tests/e2e/test_trials.py ends one of each provider
def test_trials_that_are_behind_at_a_rung_end_there_by_themselves(cli: CommandLine) -> None:
    state = asha(cli, "stopping", "never", [1, 0.9])
    assert [(trial.state, trial.reports) for trial in state.trials] == [
        ("completed", 4),
        ("pruned", 1),
    ]


def test_trials_wait_at_their_rung_and_the_best_come_back_from_their_checkpoints(
    cli: CommandLine,
) -> None:
    state = asha(cli, "promoting", "always", [1, 0.9, 2], wait=True)
    assert [(trial.state, trial.reports, len(trial.runs)) for trial in state.trials] == [
        ("paused", 2, 2),
        ("paused", 1, 1),
        ("completed", 4, 3),
    ]
    assert [round(value, 3) for value in state.trials[2].curve] == [1.0, 1.5, 1.667, 1.75]


@pytest.mark.thorough
@pytest.mark.torchrun
def test_a_sweep_over_processes_measures_their_throughput(cli: CommandLine) -> None:
    (job,) = [block for block in blocks(DOCS / "guides/slow-runs.md") if block.language == "yaml"]
    cli.write(job_yaml=job.text)
    follower = cli.start("sweep", "start", "--sweep-id", "ranks")
    _, told = follower.communicate(timeout=HANG_SECONDS)
    assert follower.returncode == 0, told
    trials = sweep_of(cli, "ranks").status().trials
    assert [trial.parameters["resources.processes"] for trial in trials] == [1, 2]
    assert all((trial.reports, trial.state) == (3, "completed") for trial in trials)
    assert all((trial.value or 0.0) > 0 for trial in trials)
