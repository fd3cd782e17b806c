"""Sweeps for tests, and trials that are a function of their values: files take the place of a real
job, and survive a kill.

Their clock is the journal's own: the next trial to report depends only on the journal.
"""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cloudtrain.spec.search_space import Dimension, Scalar, read_space
from cloudtrain.sweeps.definition import Definition
from cloudtrain.sweeps.driver import drive
from cloudtrain.sweeps.journal import (
    JOURNAL,
    Launching,
    Reported,
    RunEnded,
    Suggested,
    SweepEnded,
    SweepEvent,
    SweepFolder,
    parse,
)
from cloudtrain.sweeps.schedule import Action, End, Suggest, next_action
from cloudtrain.sweeps.state import SweepState, Trial
from cloudtrain.sweeps.suggest import suggester_of
from cloudtrain_wire.rungs import goes_on

SPACE = {"lr": "loguniform(1e-4, 1e-1)", "width": "logint(8, 512)", "mode": "choice(1, true, 'x')"}
OUTCOMES = ("completed", "failed", "interrupted", "stopped", "refused", "pruned")


def definition_of(**changes: Any) -> Definition:
    """A sweep of 8 random trials, one after another, that minimizes `loss`."""
    space = read_space(changes.pop("space", SPACE))
    fields = {"sampler": "random", "trials": 8, "metric": "loss", "goal": "minimize", **changes}
    return Definition(
        sweep_id="digits-k2x9", name="digits", provider="local", space=space, **fields
    )


class SweepLife:
    """A sweep, its journal, and a clock that only advances with events."""

    def __init__(self, definition: Definition, seed: int = 0) -> None:
        self.state = SweepState.new(definition)
        self.journal: list[SweepEvent] = []
        self.now = 1_000.0
        self.actions: list[Action] = []
        self.suggester = suggester_of(definition)
        self.random = random.Random(seed)

    def write(self, event: SweepEvent) -> None:
        """An event happens."""
        self.journal.append(event)
        self.state.apply(event)

    def act(self) -> bool:
        """Do everything that is due now; return whether the sweep continues."""
        while (action := next_action(self.state, self.now)) is not None:
            self.actions.append(action)
            if isinstance(action, End):
                self.write(SweepEnded(time=self.now, state=action.state, reason=action.reason))
                return False
            if isinstance(action, Suggest):
                values = self.suggester.suggest(self.state)
                self.write(
                    Suggested(time=self.now, trial=len(self.state.trials), parameters=values)
                )
                continue
            cap = {"cap_usd": action.cap.usd, "cap_seconds": action.cap.seconds}
            names = {"run": action.run, "until": action.until, "resumes": action.resumes}
            self.write(Launching(time=self.now, trial=action.trial, **names, **cap))  # type: ignore[arg-type]
        return True

    def report(self, trial: Trial, value: float | None) -> None:
        """A running trial reports the metric."""
        self.write(
            Reported(time=self.now, trial=trial.number, report=trial.reports + 1, value=value)
        )

    def end(self, trial: Trial, outcome: str, usd: float | None = None) -> None:
        """The run of a trial ends."""
        run = trial.run
        number = trial.number
        self.write(RunEnded(time=self.now, trial=number, run=run, outcome=outcome, usd=usd))  # type: ignore[arg-type]

    def run(self, check: Callable[[SweepLife], None] | None = None, most: int = 400) -> SweepState:
        """Run to the end or for this many events; call `check` after each."""
        while self.act() and len(self.journal) < most:
            if check is not None:
                check(self)
            self.happen()
            if check is not None:
                check(self)
        return self.state

    def happen(self) -> None:
        """One of the running trials reports or ends, after some time."""
        self.now += self.random.choice((0.0, 1.0, 30.0))
        trial = self.random.choice(
            [trial for trial in self.state.trials if trial.state == "running"]
        )
        until = trial.runs[-1].until
        if until is not None and trial.reports >= until:
            return self.end(trial, "paused", self._cost(trial))
        if self.random.random() < 0.7:
            value = self.random.choice((None, *[round(self.random.random(), 2) for _ in range(9)]))
            return self.report(trial, value)
        return self.end(trial, self.random.choice(OUTCOMES), self._cost(trial))

    def _cost(self, trial: Trial) -> float | None:
        """Not known, or not above its cap."""
        cap = trial.runs[-1].cap_usd
        return None if cap is None or self.random.random() < 0.3 else cap * self.random.random()


def read_back(journal: list[SweepEvent]) -> list[SweepEvent]:
    """The events as another process reads them."""
    parsed = [parse(json.dumps(event.to_json()).encode()) for event in journal]
    assert None not in parsed
    return [event for event in parsed if event is not None]


Values = Mapping[str, Scalar]


def learning(values: Values, report: int) -> float:
    """Return the accuracy after this many reports: the best learning rate is 1e-2; more reports are
    better.
    """
    distance = abs(math.log10(float(values["lr"])) + 2)
    return 1 / (1 + distance) - 0.5 / (1 + report)


class FunctionTrials:
    """Jobs of a sweep, each a file in its folder `jobs`."""

    def __init__(
        self,
        folder: SweepFolder,
        function: Callable[[Values, int], float] = learning,
        fails: Callable[[str], bool] = lambda _: False,
    ) -> None:
        """`fails`: whether a run does."""
        self.folder = folder
        self.function = function
        self.fails = fails
        self.definition = folder.definition()
        self.jobs = folder.path / "jobs"
        self.jobs.mkdir(exist_ok=True)
        self.state: SweepState | None = None

    def start(self, trial: Trial) -> RunEnded | None:
        file = self.jobs / f"{trial.run}.json"
        if not file.exists():
            cost = 1 + (trial.number * 7 % 5) / 4
            self._write(trial.run, {"began_at": trial.reports, "began": self._now(), "cost": cost})
        return None

    def has_run(self, trial: Trial) -> bool:
        return (self.jobs / f"{trial.run}.json").exists()

    def observe(self, trial: Trial) -> list[SweepEvent]:
        """Return the next report, or the end after the last, unless another trial is earlier."""
        assert self.state is not None
        running = [trial for trial in self.state.trials if trial.state == "running"]
        if trial is not min(
            running, key=lambda candidate: (self._due(candidate), candidate.number)
        ):
            return []
        due = self._due(trial)
        job = self._read(trial.run)
        end = RunEnded(
            time=due,
            trial=trial.number,
            run=trial.run,
            outcome="failed",
            reason="it was told to",
            usd=1.0,
            seconds=1.0,
        )
        if self.fails(trial.run):
            return [end]
        report = job.get("at", 0)
        value = job.get("value", 0.0)
        if "outcome" not in job:
            report = trial.reports + 1
            value = self.function(trial.parameters, trial.reports + 1)
            job |= {
                "clock": due,
                "at": report,
                "value": value,
                "outcome": self._outcome(trial, report, value),
            }
            if job["outcome"]:
                # The job has decided, whether or not anybody hears of it.
                self._write(trial.run, job)
        reported = Reported(time=due, trial=trial.number, report=report, value=value)
        events: list[SweepEvent] = [reported] if trial.reports < report else []
        return (
            [*events, replace(end, outcome=job["outcome"], reason="")] if job["outcome"] else events
        )

    def publish(self, state: SweepState) -> None:
        self.state = state

    def request_stop(self, trial: Trial) -> None:
        self._write(trial.run, {**self._read(trial.run), "stopped": True})

    def failure(self, state: SweepState) -> str:
        return ""

    @property
    def last(self) -> int:
        return self.definition.last_report or 1

    def _outcome(self, trial: Trial, report: int, value: float) -> str:
        if report == trial.runs[-1].until:
            return "paused"
        if report >= self.last:
            return "completed"
        rungs = self.definition.rungs
        state = self.state
        if state is None or self.definition.promotes or report not in rungs:
            return ""
        other_values = [
            rung
            for number, rung in state.rungs[rungs.index(report)].items()
            if number != trial.number
        ]
        return (
            ""
            if goes_on(value, other_values, self.definition.eta, self.definition.goal)
            else "pruned"
        )

    def _due(self, trial: Trial) -> float:
        job = self._read(trial.run)
        if "outcome" in job:
            return float(job["clock"])
        return float(job["began"] + (trial.reports + 1 - job["began_at"]) * job["cost"])

    def _now(self) -> float:
        """When the latest thing happened that the journal has from a job."""
        heard = (
            event
            for event, _ in self.folder.events_from()
            if isinstance(event, (Reported, RunEnded))
        )
        return max((event.time for event in heard), default=0.0)

    def _read(self, run: str) -> dict[str, Any]:
        status: dict[str, Any] = json.loads((self.jobs / f"{run}.json").read_text())
        return status

    def _write(self, run: str, job: Mapping[str, Any]) -> None:
        draft = self.jobs / f".{run}"
        draft.write_text(json.dumps(dict(job)))
        draft.rename(self.jobs / f"{run}.json")


def sweep_of(space: Mapping[str, Dimension], **options: Any) -> Definition:
    """A search named digits-k2x9 on this machine, for the best accuracy; a grid unless `options`
    say otherwise.
    """
    fields = {
        "sweep_id": "digits-k2x9",
        "name": "digits",
        "provider": "local",
        "metric": "accuracy",
        "goal": "maximize",
    }
    return Definition(**{**fields, "space": space, "sampler": "grid", **options})


def ended_sweep(
    data_dir: Path,
    definition: Definition,
    function: Callable[[Values, int], float] = learning,
    fails: Callable[[str], bool] = lambda _: False,
) -> SweepFolder:
    """A sweep of that data folder, driven to its end."""
    folder = SweepFolder.create(data_dir, definition, {"spec.yaml": "", "plan.json": "{}"})
    drive(folder, FunctionTrials(folder, function, fails), pause=lambda: None)
    return folder


class Killed(BaseException):
    """A driver that has been killed."""


def raise_killed() -> None:
    """Kill the driver without a separate process."""
    raise Killed


def kill_at(
    folder: SweepFolder,
    count: int,
    run: Callable[[SweepFolder], object],
    kill: Callable[[], None] = raise_killed,
    *,
    torn: bool = False,
) -> None:
    """Run a driver, and kill it right after that many events were written; `torn`: in the middle of
    the next one.
    """
    written = sum(1 for _ in folder.events_from())
    append = SweepFolder.append

    def append_and_die(self: SweepFolder, *events: SweepEvent) -> None:
        nonlocal written
        append(self, *events)
        written += len(events)
        if written >= count:
            if torn:
                with (self.path / JOURNAL).open("ab") as file:
                    file.write(b'{"type":"suggested","trial":99')
            kill()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SweepFolder, "append", append_and_die)
        run(folder)
