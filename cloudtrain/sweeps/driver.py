"""Drive a sweep: observe its trials, record news and act, until the sweep ends.

The journal holds all knowledge, so that a new driver can replace a killed one at any moment.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Protocol

from cloudtrain.sweeps.journal import (
    Launching,
    RunEnded,
    StopRequested,
    Suggested,
    SweepEnded,
    SweepEvent,
    SweepFolder,
)
from cloudtrain.sweeps.schedule import Action, End, Start, Suggest, next_action
from cloudtrain.sweeps.state import SweepState, Trial
from cloudtrain.sweeps.suggest import Suggester, suggester_of

PAUSE_SECONDS = 0.2
"""Pause between two rounds; the provider limits its requests to a cloud."""

START_RETRY_SECONDS = 30.0
"""Pause after a start that failed for a transient reason, such as a throttled request."""


class Trials(Protocol):
    """Carries out the trials of a sweep, as runs or in another way."""

    def start(self, trial: Trial) -> RunEnded | None:
        """Start the latest run of a trial unless it was started. Return the event of a refused run."""

    def has_run(self, trial: Trial) -> bool:
        """Return whether the latest run of a trial was started."""

    def observe(self, trial: Trial) -> list[SweepEvent]:
        """Return the new events of a running trial: its reports, then its end."""

    def publish(self, state: SweepState) -> None:
        """Tell running jobs the values of other trials at the rungs."""

    def request_stop(self, trial: Trial) -> None:
        """Ask the run of a trial to stop; repeating it does no harm."""

    def failure(self, state: SweepState) -> str:
        """Return why no further trial can start; empty if one can."""


class DriverClock:
    """Clock of a driver, which never goes back.

    It starts at the latest time of the journal or the system, whichever is later, and ignores
    changes of the system time. The time that a machine sleeps counts.
    """

    def __init__(self, latest: float) -> None:
        """`latest`: the latest time in the journal."""
        self._offset = max(time.time(), latest) - _uptime()

    def now(self) -> float:
        """Return a Unix timestamp in seconds."""
        return self._offset + _uptime()


def _uptime() -> float:
    """Return the seconds since the machine was started."""
    if sys.platform == "win32":
        return time.monotonic()

    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


class SweepJournal:
    """Journal of a sweep and its state. Other processes may append to it."""

    def __init__(self, folder: SweepFolder, state: SweepState) -> None:
        self.folder = folder
        self.state = state
        self._offset = 0

    def read(self) -> list[SweepEvent]:
        """Apply new events and return them. Raise StorageError if the journal cannot be read."""
        new_events = []
        for event, offset in self.folder.events_from(self._offset):
            self._offset = offset
            if event is None:
                continue
            self.state.apply(event)
            new_events.append(event)
        return new_events

    def write(self, *events: SweepEvent) -> None:
        """Append events, then apply all new events of the journal."""
        if events:
            self.folder.append(*events)
        self.read()

    def suggest(self, suggester: Suggester, time_now: float) -> None:
        """Record the values of the next trial."""
        values = suggester.suggest(self.state)
        self.write(Suggested(time=time_now, trial=len(self.state.trials), parameters=values))

    def announce(self, action: Start, time_now: float) -> Trial:
        """Record a run before its start, and return its trial."""
        self.write(
            Launching(
                time=time_now,
                trial=action.trial,
                run=action.run,
                until=action.until,
                resumes=action.resumes,
                cap_usd=action.cap.usd,
                cap_seconds=action.cap.seconds,
            )
        )
        return self.state.trials[action.trial]


def pause_between_rounds() -> None:
    time.sleep(PAUSE_SECONDS)


def drive(
    folder: SweepFolder, trials: Trials, *, pause: Callable[[], None] = pause_between_rounds
) -> SweepState:
    """Drive a sweep to its end and return its state.

    Raise UsageError if another process drives it. `pause` is called between two rounds.
    """
    definition = folder.definition()
    suggester = suggester_of(definition)
    journal = SweepJournal(folder, SweepState.new(definition))
    with folder.driving():
        journal.read()
        if journal.state.state not in ("running", "stopping"):
            return journal.state
        driver = Driver(journal, trials, suggester)
        driver.recover()
        while not driver.advance():
            pause()
    return journal.state


class Driver:
    """Work of one process on a sweep."""

    def __init__(self, journal: SweepJournal, trials: Trials, suggester: Suggester) -> None:
        self.journal = journal
        self.trials = trials
        self.suggester = suggester
        journal.read()
        self.clock = DriverClock(journal.state.latest)
        self._no_start_before = 0.0
        """Monotonic time."""

    @property
    def state(self) -> SweepState:
        """State after all events that were read."""
        return self.journal.state

    def recover(self) -> None:
        """Start announced runs that an earlier driver may not have started; none after a stop."""
        for trial in self.state.trials:
            if trial.state != "running":
                continue

            if self.state.state == "stopping" and not self.trials.has_run(trial):
                self.journal.write(
                    RunEnded(
                        time=self.clock.now(), trial=trial.number, run=trial.run, outcome="stopped"
                    )
                )
            else:
                self._start(trial)

    def advance(self) -> bool:
        """Run one round: act on the state, then observe every trial.

        Return True at the end of the sweep. Each event is acted on before the next trial is
        observed: the order is the same after a kill.
        """
        self.journal.read()
        if self._act():
            return True
        for trial in self.state.trials:
            if trial.state == "running":
                self._look_at(trial)
                if self._act():
                    return True
        return False

    def _act(self) -> bool:
        """Act on the present state. Return True if that ended the sweep."""
        for trial in to_be_stopped(self.state):
            self.trials.request_stop(trial)
        while (action := self._next_action()) is not None:
            if isinstance(action, Start) and time.monotonic() < self._no_start_before:
                return False
            if isinstance(action, End):
                self.journal.write(
                    SweepEnded(time=self.clock.now(), state=action.state, reason=action.reason)
                )
                return True
            if isinstance(action, Suggest):
                self.journal.suggest(self.suggester, self.clock.now())
            else:
                self._start(self.journal.announce(action, self.clock.now()))
        return False

    def _next_action(self) -> Action | None:
        """Return the next action: the end of the sweep in place of a start that cannot be made."""
        action = next_action(self.state, self.clock.now())
        if not isinstance(action, Start | Suggest):
            return action

        failure = self.trials.failure(self.state)
        if not failure:
            return action
        if any(trial.state == "running" for trial in self.state.trials):
            return None

        return End("failed", failure)

    def _look_at(self, trial: Trial) -> None:
        """Record new events of a trial at once and publish its values to other trials."""
        if events := self.trials.observe(trial):
            self.journal.write(*events)
            self.trials.publish(self.state)

    def _start(self, trial: Trial) -> None:
        refused = self.trials.start(trial)
        if refused is not None:
            self.journal.write(refused)
            if refused.outcome == "interrupted":
                self._no_start_before = time.monotonic() + START_RETRY_SECONDS
        self.trials.publish(self.state)


def to_be_stopped(state: SweepState) -> list[Trial]:
    """Return the running trials to stop: all, or all except the trial at the target."""
    if state.state != "stopping" and state.reached is None:
        return []

    running = [trial for trial in state.trials if trial.state == "running"]
    if state.state == "stopping":
        return running
    return [trial for trial in running if trial.number != state.reached]


def request_stop(folder: SweepFolder) -> None:
    """Record a stop request; the driver stops the trials."""
    folder.append(StopRequested(time=time.time()))
