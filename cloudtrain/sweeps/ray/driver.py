"""Drive a sweep on a Ray cluster: Ray Tune places the trials, and its ASHA ends them.

Ray forgets the values at rungs when its driver dies (ray#30838), and ends all trials. A new driver
never restores Ray's state: it replays all values to the scheduler in the order of the journal, and
continues unfinished trials from their checkpoints.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any, Protocol

from cloudtrain.errors import CloudError, CloudtrainError
from cloudtrain.planning.plan import Plan
from cloudtrain.sweeps.driver import PAUSE_SECONDS, DriverClock, SweepJournal, to_be_stopped
from cloudtrain.sweeps.events import Launching, Reported, RunEnded, Suggested, SweepEvent
from cloudtrain.sweeps.journal import SweepFolder
from cloudtrain.sweeps.schedule import End, Start, Suggest, next_action
from cloudtrain.sweeps.state import SweepState, Trial
from cloudtrain.sweeps.suggest import Suggester

MAX_LOSSES = 3
"""Maximum losses of a trial's worker without a report in between."""


class Halving(Protocol):
    """Decides which trials end early, as Ray's ASHA does."""

    def falls_behind(self, trial: int, report: int, value: float) -> bool:
        """Take in a report. Return True if the trial ends with it."""


class Jobs(Protocol):
    """Runs of trials, on a disk that driver and workers share."""

    def has_run(self, trial: Trial) -> bool:
        """Return True if the latest run of a trial was submitted."""

    def plan(self, trial: Trial) -> Plan:
        """Return the plan of its latest run."""

    def observe(self, trial: Trial) -> list[SweepEvent]:
        """Return its new events."""

    def request_stop(self, trial: Trial) -> None:
        """Ask its run to stop."""

    def was_asked_to_stop(self, trial: Trial) -> bool:
        """Return True if anybody asked its run to stop."""

    def has_failed_by_itself(self, trial: Trial) -> bool:
        """Return True if its program failed and was not ended from outside."""


class RayDriver:
    """Driver that hands out trials to Ray Tune and records events from workers."""

    def __init__(
        self, journal: SweepJournal, jobs: Jobs, suggester: Suggester, halving: Halving | None
    ) -> None:
        self.journal = journal
        self._jobs = jobs
        self._suggester = suggester
        self._halving = halving
        self._clock = DriverClock(0.0)
        self._announced: list[int] = []
        """Trials whose run is in the journal and was not started."""
        self._left: dict[int, bool] = {}
        """Trials without a worker: True if a stop of their run was requested before."""
        self._behind: set[int] = set()
        self._losses: dict[int, tuple[int, int]] = {}
        """Reports of a trial, and the losses of its worker since then."""
        self._next_look = 0.0
        self.end: End | None = None
        """End of the sweep; None while it runs."""

    @property
    def state(self) -> SweepState:
        """State after all events that were read."""
        return self.journal.state

    @property
    def folder(self) -> SweepFolder:
        """Folder of the sweep."""
        return self.journal.folder

    def recover(self) -> None:
        """Replay the journal to the scheduler and take over trials of an earlier driver."""
        for event in self.journal.read():
            if isinstance(event, Reported):
                self._decide(event)
        self._clock = DriverClock(self.state.latest)
        for trial in self.state.trials:
            if trial.state == "running" and self._jobs.has_run(trial):
                self._take_over(trial)
            elif trial.state == "running":
                self._announced.append(trial.number)

    def advance(self) -> None:
        """Observe runs without a worker, and carry out a stop of the sweep."""
        if time.monotonic() < self._next_look:
            return
        self._next_look = time.monotonic() + PAUSE_SECONDS
        self.journal.read()
        stopped = {trial.number for trial in to_be_stopped(self.state)}
        for trial in self.state.trials:
            if trial.state != "running" or not self._jobs.has_run(trial):
                continue
            if (
                trial.number in self._left
                or trial.number in self._behind
                or trial.number in stopped
            ):
                with suppress(CloudError):
                    self._jobs.request_stop(trial)
            if trial.number in self._left:
                for event in self._jobs.observe(trial):
                    self.take(self._as_left(event) if isinstance(event, RunEnded) else event)

    def next_trial(self) -> Mapping[str, Any] | None:
        """Return what a worker needs to start the next run.

        None: no run at present or, with `end`, no run at all.
        """
        self.advance()
        if self.state.state == "stopping":
            while self._announced:
                self.withdraw(self._announced.pop())
        while True:
            trial = self._announced_trial()
            if trial is None:
                action = next_action(self.state, self._clock.now())
                if action is None or isinstance(action, End):
                    self.end = action
                    return None
                if isinstance(action, Suggest):
                    self._suggest()
                    continue
                trial = self._launch(action)
            if (handed_out := self._handed_out(trial)) is not None:
                return handed_out

    def take(self, event: SweepEvent) -> None:
        """Record an event of a worker, and stop a trial that falls behind with it.

        Later reports of that trial do not count, and do not change how it ended.
        """
        is_behind = isinstance(event, (Reported, RunEnded)) and event.trial in self._behind
        if isinstance(event, RunEnded):
            self._left.pop(event.trial, None)
            event = (
                replace(event, outcome="pruned", reason="Ray's ASHA has ended it")
                if is_behind
                else event
            )
        if not (is_behind and isinstance(event, Reported)):
            self.journal.write(event)
        if isinstance(event, Reported) and not is_behind:
            self._decide(event)
            if event.trial in self._behind:
                with suppress(CloudError):
                    self._jobs.request_stop(self.state.trials[event.trial])

    def lose(self, number: int, why: str) -> None:
        """End the run of a lost worker; another run continues from it."""
        trial = self.state.trials[number]
        if trial.state != "running":
            return
        before = self._losses.get(number, (trial.reports, 0))
        count = before[1] + 1 if before[0] == trial.reports else 1
        self._losses[number] = (trial.reports, count)
        if self._jobs.has_run(trial):
            self._take_over(trial)
        else:
            self.journal.write(self._lost(trial, why))

    def withdraw(self, number: int) -> None:
        """Record that Ray gave back a trial of a stopped sweep before its start."""
        trial = self.state.trials[number]
        if trial.state == "running" and not self._jobs.has_run(trial):
            self.take(_ended(trial, "stopped", "it had not begun"))

    def _announced_trial(self) -> Trial | None:
        return self.state.trials[self._announced.pop(0)] if self._announced else None

    def _suggest(self) -> None:
        values = self._suggester.suggest(self.state)
        self.journal.write(
            Suggested(time=self._clock.now(), trial=len(self.state.trials), parameters=values)
        )

    def _launch(self, action: Start) -> Trial:
        self.journal.write(
            Launching(
                time=self._clock.now(),
                trial=action.trial,
                run=action.run,
                resumes=action.resumes,
                cap_usd=action.cap.usd,
                cap_seconds=action.cap.seconds,
            )
        )
        return self.state.trials[action.trial]

    def _handed_out(self, trial: Trial) -> Mapping[str, Any] | None:
        """Return a trial for Ray with its resources; None if its values are invalid."""
        try:
            plan = self._jobs.plan(trial)
        except CloudtrainError as error:
            self.take(_ended(trial, "refused", error.message))
            return None
        definition = self.state.definition
        return {
            "trial": trial.number,
            "run": trial.run,
            "parameters": dict(trial.parameters),
            "cpus": definition.ray_cpus or plan.processes,
            "gpus": plan.gpus if definition.ray_gpus is None else definition.ray_gpus,
        }

    def _decide(self, event: Reported) -> None:
        value = float("nan") if event.value is None else event.value
        if self._halving is not None and self._halving.falls_behind(
            event.trial, event.report, value
        ):
            self._behind.add(event.trial)

    def _take_over(self, trial: Trial) -> None:
        self._left[trial.number] = self._jobs.was_asked_to_stop(trial)
        self._next_look = 0.0

    def _as_left(self, event: RunEnded) -> RunEnded:
        """Return the end of a run without a worker: interrupted, unless it had ended."""
        trial = self.state.trials[event.trial]
        was_asked = self._left.get(event.trial, False) or self.state.state == "stopping"
        by_itself = event.outcome == "failed" and self._jobs.has_failed_by_itself(trial)
        if by_itself or event.outcome not in ("failed", "stopped", "interrupted"):
            return event
        if was_asked:
            return replace(event, outcome="stopped")
        lost = self._lost(trial, event.reason)
        return replace(event, outcome=lost.outcome, reason=lost.reason)

    def _lost(self, trial: Trial, why: str) -> RunEnded:
        if self._losses.get(trial.number, (0, 0))[1] >= MAX_LOSSES:
            return _ended(
                trial, "failed", f"its worker was lost {MAX_LOSSES} times in a row: {why}"
            )
        return _ended(trial, "interrupted", why)


def _ended(trial: Trial, outcome: Any, reason: str) -> RunEnded:
    return RunEnded(
        time=time.time(), trial=trial.number, run=trial.run, outcome=outcome, reason=reason, usd=0.0
    )
