"""Drive a sweep on a Ray cluster: Ray Tune places the trials, which end themselves at rungs.

When its driver dies, Ray ends all trials. A new driver never restores Ray's state: the journal has
it, and unfinished trials continue from their checkpoints.
"""

from __future__ import annotations

import sys
import time
import traceback
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any, Protocol

from cloudtrain.errors import CloudError, CloudtrainError
from cloudtrain.runs.folder import RunFolder
from cloudtrain.runs.history import History
from cloudtrain.runs.paths import RunPaths
from cloudtrain.sweeps.definition import Definition
from cloudtrain.sweeps.driver import PAUSE_SECONDS, DriverClock, SweepJournal, to_be_stopped
from cloudtrain.sweeps.journal import Reported, RunEnded, SweepEnded, SweepEvent, SweepFolder
from cloudtrain.sweeps.schedule import End, Suggest, next_action
from cloudtrain.sweeps.state import SweepState, Trial
from cloudtrain.sweeps.suggest import Suggester, suggester_of
from cloudtrain.sweeps.trials import RunTrials, run_ended

MAX_LOSSES = 3
"""Maximum losses of a trial's worker without a report in between."""
MAX_BREAKS = 3
"""Maximum failures of Ray Tune without a report in between."""
RECONNECT_SECONDS = 10.0
"""Interval of attempts to reach a cluster that does not answer."""


class RayRuns(RunTrials):
    """Runs of a sweep on a Ray cluster, on a disk that its nodes share."""

    def __init__(self, folder: SweepFolder, definition: Definition) -> None:
        super().__init__(folder, definition)
        self._runs_dir = folder.path.parents[1] / "runs"

    def was_asked_to_stop(self, trial: Trial) -> bool:
        """Return True if anybody asked its run to stop; a lost worker does not ask."""
        return RunPaths(self._runs_dir / trial.run).stop_file.exists()

    def has_failed_by_itself(self, trial: Trial) -> bool:
        """Return True if its program failed and was not ended from outside."""
        return History(RunFolder(self._runs_dir / trial.run)).read().error is not None


class RayDriver:
    """Driver that hands out trials to Ray Tune and records events from workers."""

    def __init__(self, journal: SweepJournal, jobs: RayRuns, suggester: Suggester) -> None:
        self.journal = journal
        self._jobs = jobs
        self._suggester = suggester
        self._clock = DriverClock(0.0)
        self._announced: list[int] = []
        """Trials whose run is in the journal and was not started."""
        self._left: dict[int, bool] = {}
        """Trials without a worker: True if a stop of their run was requested before."""
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
        """Take over trials of an earlier driver."""
        self.journal.read()
        self._clock = DriverClock(self.state.latest)

        for trial in self.state.trials:
            if trial.state == "running" and self._jobs.has_run(trial):
                self._take_over(trial)
            elif trial.state == "running":
                self._announced.append(trial.number)

    def advance(self) -> None:
        """Publish values, observe runs without a worker, and carry out a stop of the sweep."""
        if time.monotonic() < self._next_look:
            return

        self._next_look = time.monotonic() + PAUSE_SECONDS
        self.journal.read()
        self._jobs.publish(self.state)
        stopped = {trial.number for trial in to_be_stopped(self.state)}

        for trial in self.state.trials:
            if trial.state != "running" or not self._jobs.has_run(trial):
                continue
            if trial.number in self._left or trial.number in stopped:
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
                    self.journal.suggest(self._suggester, self._clock.now())
                    continue

                trial = self.journal.announce(action, self._clock.now())

            if (handed_out := self._handed_out(trial)) is not None:
                return handed_out

    def take(self, event: SweepEvent) -> None:
        """Record an event of a worker."""
        if isinstance(event, RunEnded):
            self._left.pop(event.trial, None)
        self.journal.write(event)

    def lose(self, number: int, why: str) -> None:
        """End the run of a lost worker; another run continues from it."""
        trial = self.state.trials[number]
        if trial.state != "running":
            return

        before = self._losses.get(number, (trial.reports, 0))
        if before[0] == trial.reports:
            count = before[1] + 1
        else:
            count = 1

        self._losses[number] = (trial.reports, count)

        if self._jobs.has_run(trial):
            self._take_over(trial)
        else:
            self.journal.write(self._lost(trial, why))

    def withdraw(self, number: int) -> None:
        """Record that Ray gave back a trial of a stopped sweep before its start."""
        trial = self.state.trials[number]
        if trial.state == "running" and not self._jobs.has_run(trial):
            self.take(run_ended(trial, "stopped", "it had not begun"))

    def _announced_trial(self) -> Trial | None:
        if not self._announced:
            return None

        return self.state.trials[self._announced.pop(0)]

    def _handed_out(self, trial: Trial) -> Mapping[str, Any] | None:
        """Return a trial for Ray with its resources; None if its values are invalid."""
        try:
            plan = self._jobs.plan(trial)
        except CloudtrainError as error:
            self.take(run_ended(trial, "refused", error.message))
            return None

        definition = self.state.definition
        return {
            "trial": trial.number,
            "run": trial.run,
            "parameters": dict(trial.parameters),
            "metric": definition.metric,
            "cpus": definition.ray_cpus or plan.processes,
            "gpus": plan.gpus if definition.ray_gpus is None else definition.ray_gpus,
        }

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
            return run_ended(
                trial, "failed", f"its worker was lost {MAX_LOSSES} times in a row: {why}"
            )

        return run_ended(trial, "interrupted", why)


class Cluster(Protocol):
    """Connection of a driver to Ray."""

    def connect(self) -> None:
        """Join the cluster, or start one here. Raise CloudError if it does not answer."""

    def disconnect(self) -> None:
        """Leave the cluster, and end one that was started here."""

    def run(self, driver: RayDriver) -> None:
        """Run all trials of the driver until it hands out the last one."""


def drive_ray(
    folder: SweepFolder,
    cluster: Cluster,
    jobs: RayRuns,
    *,
    pause: Callable[[float], None] = time.sleep,
) -> SweepState:
    """Drive a sweep by Ray Tune to its end and return its state.

    `pause` sleeps for a number of seconds. Raise UsageError if another process drives the sweep.
    """
    definition = folder.definition()
    breaks = 0
    reports = -1

    with folder.driving():
        while True:
            driver = RayDriver(
                SweepJournal(folder, SweepState.new(definition)),
                jobs,
                suggester_of(definition),
            )
            driver.recover()

            if driver.state.state not in ("running", "stopping"):
                return driver.state

            error = _run_once(driver, cluster, pause)
            if error:
                count = sum(isinstance(event, Reported) for event, _ in folder.events_from())
                if count == reports:
                    breaks = breaks + 1
                else:
                    breaks = 1

                reports = count

                if breaks >= MAX_BREAKS:
                    _end_all(driver, pause)
                    driver.end = End("failed", f"Ray Tune broke {breaks} times in a row: {error}")

            if driver.end is not None:
                driver.journal.write(
                    SweepEnded(time=time.time(), state=driver.end.state, reason=driver.end.reason)
                )


def _run_once(driver: RayDriver, cluster: Cluster, pause: Callable[[float], None]) -> str:
    """Run trials until the sweep is over or Ray fails. Return the failure, or an empty text."""
    if not _connected(driver, cluster, pause):
        return ""

    try:
        cluster.run(driver)
    except (CloudtrainError, KeyboardInterrupt):
        raise
    except Exception as error:  # noqa: BLE001  (any error of Ray: the journal has the state)
        traceback.print_exc()
        return " ".join(f"{type(error).__name__}: {error}".split())[:300]
    finally:
        cluster.disconnect()

    return "" if driver.end else "it ended before the sweep did"


def _connected(driver: RayDriver, cluster: Cluster, pause: Callable[[float], None]) -> bool:
    """Join the cluster. Return False if the sweep has ended.

    Retry without limit once there are trials.
    """
    while True:
        try:
            cluster.connect()
        except CloudError as error:
            if not driver.state.trials:  # without trials, fail at once
                driver.end = End("failed", error.message)
                return False

            print(error.render(), file=sys.stderr, flush=True)
        else:
            return True

        until = time.monotonic() + RECONNECT_SECONDS
        while time.monotonic() < until:
            driver.advance()
            if (
                driver.state.state == "stopping"
                and driver.next_trial() is None
                and driver.end is not None
            ):
                return False

            pause(PAUSE_SECONDS)


def _end_all(driver: RayDriver, pause: Callable[[float], None]) -> None:
    """End all active runs."""
    for trial in driver.state.trials:
        driver.lose(trial.number, "Ray Tune broke")

    while any(trial.state == "running" for trial in driver.state.trials):
        driver.advance()
        pause(PAUSE_SECONDS)
