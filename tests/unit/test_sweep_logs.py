"""`logs -f` of a running sweep: lines are written between two looks of the command."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cloudtrain.runs.folder import RunFolder
from cloudtrain.runs.logs import format_timestamp
from cloudtrain.runs.store import RunStore
from cloudtrain.spec.search_space import Uniform
from cloudtrain.submission.monitor import RunMonitor
from cloudtrain.sweeps.events import Launching, RunEnded, Suggested, SweepEnded
from cloudtrain.sweeps.journal import SweepFolder
from cloudtrain.sweeps.sweep import Sweep, SweepUpdate
from tests.support.function_trials import sweep_of
from tests.support.in_process import call
from tests.support.samples import BORN, write_events

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


@pytest.mark.parametrize(("tail", "lines"), [("1", ["just before", "after"]), ("0", ["after"])])
def test_tail_shows_the_last_existing_lines_before_following(
    going: Going, tail: str, lines: list[str]
) -> None:
    going.say(0, "just before")
    going.steps = [lambda: going.end(0, "after"), going.end_sweep]
    shown = call("logs", "digits-k2x9", "-f", "--tail", tail, "--rank", "0").out.splitlines()
    assert shown == [f"[trial 0] {line}" for line in lines]


def test_ctrl_c_ends_the_following_and_not_the_sweep(going: Going) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    going.steps = [lambda: going.say(0, "first"), interrupt]
    result = call("logs", "digits-k2x9", "-f")
    assert result.code == 130
    assert result.out.splitlines()[-1] == "[trial 0] [rank 0] first"
    assert "digits-k2x9 keeps running" in result.err
    assert Sweep(going.folder).status().state == "running"
