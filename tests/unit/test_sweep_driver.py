"""The driver of a sweep continues after any kill, and `logs -f` shows its lines."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from cloudtrain.api.monitor import RunMonitor
from cloudtrain.errors import UsageError
from cloudtrain.runs.folder import RunFolder
from cloudtrain.runs.logs import format_timestamp
from cloudtrain.runs.store import RunStore
from cloudtrain.spec.search_space import Choice, Dimension, Uniform
from cloudtrain.sweeps.definition import Caps, Definition
from cloudtrain.sweeps.driver import Driver, SweepJournal, drive, request_stop
from cloudtrain.sweeps.journal import (
    JOURNAL,
    Extended,
    Launching,
    RunEnded,
    Suggested,
    SweepEnded,
    SweepFolder,
)
from cloudtrain.sweeps.state import SweepState, Trial
from cloudtrain.sweeps.suggest import suggester_of
from cloudtrain.sweeps.sweep import Sweep, SweepUpdate
from tests.support.function_trials import FunctionTrials, Killed, kill_at, sweep_of
from tests.support.in_process import call
from tests.support.samples import BORN, write_events

# The driver of a sweep: killed at any event, the next driver continues the same sequence to the
# same end.

SPACE: dict[str, Dimension] = {
    "lr": Uniform(1e-5, 1.0, log=True),
    "optimizer": Choice(("adamw", "sgd")),
}

SEARCHES: dict[str, dict[str, Any]] = {
    "grid": {
        "sampler": "grid",
        "space": {"lr": Choice((1e-3, 1e-2, 1e-1)), "wd": Choice((0, 1))},
        "trials": 6,
    },
    "random": {"sampler": "random", "trials": 3},
    "random with retries": {"sampler": "random", "trials": 6, "retries": 1},
    "bayesian": {"sampler": "tpe", "trials": 6},
    "stopping": {"sampler": "random", "trials": 7, "rungs": (1, 3), "eta": 3, "last_report": 5},
    "promotion": {
        "sampler": "random",
        "trials": 7,
        "rungs": (1, 3),
        "eta": 3,
        "last_report": 5,
        "promotes": True,
    },
    "budget": {
        "sampler": "random",
        "trials": 12,
        "budget": Caps(usd=5.0),
        "trial_cap": Caps(usd=1.0),
    },
}


def sweep(root: Path, name: str) -> SweepFolder:
    values = {
        "metric": "accuracy",
        "goal": "maximize",
        "space": SPACE,
        "parallel": 3,
        **SEARCHES[name],
    }
    definition = Definition(sweep_id="digits-1", name="digits", provider="local", **values)
    return SweepFolder.create(root, definition, {"spec.yaml": "", "plan.json": "{}"})


def trials_of(folder: SweepFolder) -> FunctionTrials:
    fails = (lambda run: run.endswith("1")) if folder.definition().retries else (lambda _: False)
    return FunctionTrials(folder, fails=fails)


def run_to_the_end(folder: SweepFolder) -> SweepState:
    return drive(folder, trials_of(folder), pause=lambda: None)


def history(folder: SweepFolder) -> list[dict[str, Any]]:
    """Return the journal without the times of its events."""
    events = [event for event, _ in folder.events_from() if event is not None]
    return [{**event.to_json(), "time": 0} for event in events]


@pytest.mark.parametrize("name", SEARCHES)
def test_successor_of_a_driver_killed_at_any_event_does_the_same(name: str, tmp_path: Path) -> None:
    never_killed = sweep(tmp_path / "never", name)
    run_to_the_end(never_killed)
    expected = history(never_killed)
    launched = [event["run"] for event in expected if event["type"] == "launching"]
    assert sorted(launched) == sorted({event["run"] for event in expected if event.get("run")})
    for count in range(1, len(expected)):
        folder = sweep(tmp_path / str(count), name)
        with pytest.raises(Killed):
            kill_at(folder, count, run_to_the_end, torn=count % 2 == 0)
        written = history(folder)
        assert len(written) >= count
        assert written == expected[: len(written)]
        run_to_the_end(folder)
        assert history(folder) == expected


def test_a_stop_starts_no_run_that_an_earlier_driver_has_only_announced(tmp_path: Path) -> None:
    folder = sweep(tmp_path, "grid")
    trials = FunctionTrials(folder)
    journal = SweepJournal(folder, SweepState.new(folder.definition()))
    journal.suggest(suggester_of(folder.definition()), 1.0)
    journal.write(Launching(time=2.0, trial=0, run="digits-1-t000"))
    request_stop(folder)

    state = drive(folder, trials, pause=lambda: None)

    assert (state.state, [trial.state for trial in state.trials]) == ("stopped", ["stopped"])
    assert list(trials.jobs.iterdir()) == []


class Throttled(FunctionTrials):
    """Trials that the cloud does not let start for now."""

    starts = 0

    def start(self, trial: Trial) -> RunEnded:
        self.starts += 1
        return RunEnded(
            time=1.0, trial=trial.number, run=trial.run, outcome="interrupted", reason="throttled"
        )


def test_a_start_that_fails_for_now_is_not_tried_again_at_once(tmp_path: Path) -> None:
    folder = sweep(tmp_path, "grid")
    trials = Throttled(folder)
    suggester = suggester_of(folder.definition())
    driver = Driver(SweepJournal(folder, SweepState.new(folder.definition())), trials, suggester)
    assert [driver.advance() for _ in range(3)] == [False] * 3
    assert (trials.starts, driver.state.trials[0].state, driver.state.trials[0].failures) == (
        1,
        "waiting",
        0,
    )


def test_a_clock_that_is_set_back_gives_no_trial_more_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    definition = sweep_of(
        SPACE, sampler="random", trials=4, last_report=3, budget=Caps(seconds=3600.0)
    )
    folder = SweepFolder.create(tmp_path, definition, {"spec.yaml": "", "plan.json": "{}"})
    clock = {"system": 1_000_000.0, "uptime": 50.0}
    monkeypatch.setattr("cloudtrain.sweeps.driver.time.time", lambda: clock["system"])
    monkeypatch.setattr("cloudtrain.sweeps.driver.time.clock_gettime", lambda _: clock["uptime"])

    def pause() -> None:
        clock["uptime"] += 100.0
        clock["system"] += 100.0 if clock["uptime"] < 300.0 else -5_000.0

    drive(folder, FunctionTrials(folder), pause=pause)
    folder.append(Extended(time=clock["system"], trials=6))
    drive(folder, FunctionTrials(folder), pause=pause)
    caps = [
        event.cap_seconds or 0.0
        for event, _ in folder.events_from()
        if isinstance(event, Launching)
    ]
    assert caps[0] == 3600.0
    assert caps[-1] <= 3600.0 - 1000.0
    assert caps == sorted(caps, reverse=True)


def test_only_one_process_drives_a_sweep(tmp_path: Path) -> None:
    folder = sweep(tmp_path, "grid")
    with folder.driving(), pytest.raises(UsageError, match="is driven by another process"):
        run_to_the_end(SweepFolder(folder.path))
    assert not folder.is_driven()


def test_a_damaged_line_of_the_journal_is_passed_over(tmp_path: Path) -> None:
    folder = sweep(tmp_path, "grid")
    (folder.path / JOURNAL).write_bytes(
        b'\xff\x00\n[1]\n{"type":"told"}\n{"type":"suggested"}\nnull\n'
    )
    end = run_to_the_end(folder)
    assert [trial.state for trial in end.trials] == ["completed"] * 6


def test_a_journal_that_others_append_to_is_read_in_order(tmp_path: Path) -> None:
    folder = sweep(tmp_path, "grid")
    journal = SweepJournal(folder, SweepState.new(folder.definition()))
    folder.append(Suggested(time=1.0, trial=0, parameters={"lr": 0.1, "wd": 0}))
    journal.write(Extended(time=2.0, trials=9))
    assert (journal.state.wanted, len(journal.state.trials)) == (9, 1)


# `logs -f` of a running sweep: lines are written between two looks of the command.

Step = Callable[[], None]


class Going:
    """A sweep whose trials do what a test says, a step at each look of who follows it."""

    def __init__(self, data: Path) -> None:
        self.data = data
        definition = sweep_of({"lr": Uniform(0, 1)}, sampler="random", trials=3)
        self.folder = SweepFolder.create(data, definition, {"spec.yaml": "", "plan.json": "{}"})
        self.steps: list[Step] = []
        self.clock = 100.0

    def watch(self, sweep: Sweep) -> Iterator[SweepUpdate]:
        for step in self.steps:
            step()
            yield SweepUpdate(sweep.status(), [])

    def start(self, trial: int, *lines: str) -> None:
        run = f"{self.folder.sweep_id}-t{trial:03d}"
        self.folder.append(
            Suggested(time=1.0, trial=trial, parameters={"lr": 0.5}),
            Launching(time=1.0, trial=trial, run=run),
        )
        plan = {"provider": "local", "spec": {"name": "digits"}}
        write_events(
            RunStore(self.data).create(run, {"plan.json": json.dumps(plan)}),
            {**BORN, "time": 100.0},
        )
        self.say(trial, *lines)

    def say(self, trial: int, *lines: str) -> None:
        with (self.run(trial).path / "logs" / "node-0.log").open("a") as file:
            for line in lines:
                self.clock += 1
                file.write(f"{format_timestamp(self.clock)} [rank 0] {line}\n")

    def end(self, trial: int, *lines: str) -> None:
        self.say(trial, *lines)
        write_events(self.run(trial), {"type": "ended", "time": 110.0, "state": "succeeded"})
        ended = RunEnded(time=2.0, trial=trial, run=self.run(trial).run_id, outcome="completed")
        self.folder.append(ended)

    def end_sweep(self) -> None:
        self.folder.append(SweepEnded(time=3.0, state="succeeded"))

    def run(self, trial: int) -> RunFolder:
        return RunFolder(self.data / "runs" / f"{self.folder.sweep_id}-t{trial:03d}")


@pytest.fixture
def going(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Going:
    """Provide a sweep with one running trial that has printed `before`."""
    monkeypatch.setenv("CLOUDTRAIN_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.chdir(tmp_path)
    loaded = Going(tmp_path / "data")
    monkeypatch.setattr(Sweep, "watch", lambda sweep: loaded.watch(sweep))
    monkeypatch.setattr(RunMonitor, "observe", lambda _: None)  # these runs have no process
    loaded.start(0, "before")
    return loaded


def test_the_lines_of_all_trials_come_until_the_sweep_has_ended(going: Going) -> None:
    going.steps = [
        lambda: going.say(0, "first"),
        lambda: going.start(1, "of another"),
        lambda: going.say(0, "second"),
        lambda: going.end(0, "last"),
        lambda: going.end(1),
        going.end_sweep,
    ]
    result = call("logs", "digits-k2x9", "-f")
    assert (result.code, result.err) == (0, "")
    expected = [(0, "before"), (0, "first"), (1, "of another"), (0, "second"), (0, "last")]
    assert result.out.splitlines() == [
        f"[trial {trial}] [rank 0] {text}" for trial, text in expected
    ]


def test_lines_of_a_trial_after_the_sweep_are_shown_until_its_run_ends(
    going: Going, monkeypatch: pytest.MonkeyPatch
) -> None:
    going.steps = [going.end_sweep]
    monkeypatch.setattr(
        "cloudtrain.sweeps.logs.time.sleep", lambda _: going.end(0, "the very last")
    )
    assert (
        call("logs", "digits-k2x9", "-f").out.splitlines()[-1] == "[trial 0] [rank 0] the very last"
    )


def test_ctrl_c_ends_the_following_and_not_the_sweep(going: Going) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    going.steps = [lambda: going.say(0, "first"), interrupt]
    result = call("logs", "digits-k2x9", "-f")
    assert result.code == 130
    assert result.out.splitlines()[-1] == "[trial 0] [rank 0] first"
    assert "digits-k2x9 keeps running" in result.err
    assert Sweep(going.folder).status().state == "running"
