"""Sweeps that live through anything: each of their actions is taken, and what their runs then do is
drawn at random.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any

from cloudtrain.spec.search_space import read_space
from cloudtrain.sweeps.definition import Definition
from cloudtrain.sweeps.journal import (
    Launching,
    Reported,
    RunEnded,
    Suggested,
    SweepEnded,
    SweepEvent,
    parse,
)
from cloudtrain.sweeps.schedule import Action, End, Suggest, next_action
from cloudtrain.sweeps.state import SweepState, Trial
from cloudtrain.sweeps.suggest import suggester_of

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
