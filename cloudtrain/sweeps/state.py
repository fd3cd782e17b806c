"""State of a sweep, computed from its journal: trials, rungs, and costs."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from cloudtrain.spec.search_space import Scalar
from cloudtrain.sweeps.definition import Caps, Definition
from cloudtrain.sweeps.journal import (
    Extended,
    Launching,
    Reported,
    RunEnded,
    StopRequested,
    Suggested,
    SweepEnded,
    SweepEvent,
)

ENDED = ("completed", "pruned", "failed", "too_large", "stopped")
"""Final states of a trial. An extension resumes trials that a stop of the sweep stopped."""


@dataclass(kw_only=True, slots=True)
class Trial:
    """Set of values and its result."""

    number: int
    parameters: Mapping[str, Scalar]
    state: str = "waiting"
    """waiting, running, paused (at a rung) or one of ENDED."""
    reason: str = ""
    runs: list[Launching] = field(default_factory=list)
    """Its runs, the latest last."""
    curve: list[float] = field(default_factory=list)
    """Reports of the metric; NaN for a value that is not a finite number."""
    position: float | None = None
    """Training step of the latest report, or its epoch; None if unknown."""
    cause: str = ""
    """Exception of its latest run; empty if unknown."""
    failures: int = 0
    """Number of failed runs; interruptions of spot machines do not count."""
    spent_usd: float = 0.0
    """Cost of its ended runs; a run of unknown cost counts with its cap."""
    seconds: float = 0.0
    """Duration of its ended runs."""
    is_stopping: bool = False
    """True if it ran when the sweep was stopped."""
    reported_by: str = ""
    """Run of the latest report, whose checkpoints the next run continues from."""

    @property
    def run(self) -> str:
        """Id of its latest run; empty before the first."""
        return self.runs[-1].run if self.runs else ""

    @property
    def is_interrupted(self) -> bool:
        """True if a stop of the sweep stopped it."""
        return self.state == "stopped" and self.is_stopping

    @property
    def value(self) -> float | None:
        """Latest value of the metric; None before the first report."""
        return self.curve[-1] if self.curve else None

    @property
    def reports(self) -> int:
        """Number of its reports."""
        return len(self.curve)


@dataclass(kw_only=True, slots=True)
class SweepState:
    """State of a sweep after its events."""

    definition: Definition
    trials: list[Trial] = field(default_factory=list)
    """Trials by number."""
    wanted: int = 0
    """Number of trials to run."""
    rungs: list[dict[int, float]] = field(default_factory=list)
    """Values by trial at each rung, in order of arrival."""
    promoted: list[set[int]] = field(default_factory=list)
    """Trials that were promoted from each rung."""
    reached: int | None = None
    """First trial that reported the target or better."""
    extended_at: int = 0
    """Number of trials at the latest `extended`."""
    started: float = 0.0
    """Start of the first trial, shifted by pauses before `extended`; 0: not started."""
    latest: float = 0.0
    """Latest time in the journal without reports, whose clocks are of other machines."""
    state: str = "running"
    """running, stopping, succeeded, failed or stopped; `extended` makes it running again."""
    reason: str = ""
    ended: float = 0.0

    @classmethod
    def new(cls, definition: Definition) -> SweepState:
        """Return the state before the first event."""
        count = len(definition.rungs)
        return cls(
            definition=definition,
            wanted=definition.trials,
            rungs=[{} for _ in range(count)],
            promoted=[set() for _ in range(count)],
        )

    @property
    def why_ended(self) -> str:
        """Reason of its end for people; empty while it runs."""
        if not self.ended or self.reason:
            return self.reason
        if len(self.trials) == 1:
            return "its trial has ended"
        return f"all {len(self.trials)} trials have ended"

    @property
    def spent_usd(self) -> float:
        """Cost of all ended runs."""
        return sum(trial.spent_usd for trial in self.trials)

    @property
    def committed_usd(self) -> float:
        """Caps of all current runs."""
        return sum(
            trial.runs[-1].cap_usd or 0.0 for trial in self.trials if trial.state == "running"
        )

    @property
    def best(self) -> Trial | None:
        """Trial with the best latest value; None if no trial has a value.

        Failed trials do not count. The first of equal trials wins.
        """
        sign = -1.0 if self.definition.goal == "maximize" else 1.0
        values = []
        for trial in self.trials:
            value = trial.value
            if trial.state != "failed" and value is not None and math.isfinite(value):
                values.append((sign * value, trial.number))

        return self.trials[min(values)[1]] if values else None

    def rung_of(self, trial: Trial) -> int | None:
        """Return the highest rung of a trial, from 0; None before the first."""
        passed = sum(rung <= trial.reports for rung in self.definition.rungs)
        return passed - 1 if passed else None

    def apply(self, event: SweepEvent) -> None:
        """Apply the next event of the journal. Skip an event that does not fit the state."""
        before = self.latest
        if not isinstance(event, Reported):
            self.latest = max(before, event.time)

        match event:
            case Suggested() if event.trial == len(self.trials) and self._fits(event.parameters):
                self.started = self.started or event.time
                self.trials.append(Trial(number=event.trial, parameters=event.parameters))
            case Launching() | Reported() | RunEnded() if 0 <= event.trial < len(self.trials):
                self._apply_to(self.trials[event.trial], event)
            case Extended() if event.trials >= len(self.trials):
                if self.state not in ("running", "stopping"):
                    self.started += max(0.0, event.time - before) if self.started else 0.0

                self._extend(event)
            case StopRequested() if self.state == "running":
                self.state = "stopping"
                for trial in self.trials:
                    trial.is_stopping = trial.state == "running"
            case SweepEnded() if self.state in ("running", "stopping"):
                self.state = event.state
                self.reason = event.reason
                self.ended = event.time

    def _extend(self, event: Extended) -> None:
        self.wanted = event.trials
        self.extended_at = len(self.trials)
        self.state = "running"
        self.reason = ""
        self.ended = 0.0
        budget = self.definition.budget
        self.definition = replace(
            self.definition,
            parallel=event.parallel or self.definition.parallel,
            target=None if self.reached is not None else self.definition.target,
            budget=Caps(
                usd=budget.usd if event.budget_usd is None else event.budget_usd,
                seconds=budget.seconds if event.budget_seconds is None else event.budget_seconds,
            ),
        )
        self.reached = None

        for trial in self.trials:
            if event.resumes and trial.is_interrupted:
                trial.state = "waiting"
                trial.is_stopping = False

    def _fits(self, parameters: Mapping[str, Scalar]) -> bool:
        """Return True for valid values of all settings; a cloud's engine may round them."""
        space = self.definition.space
        if parameters.keys() != space.keys():
            return False
        return self.definition.is_native or all(
            space[key].contains(value) for key, value in parameters.items()
        )

    def _apply_to(self, trial: Trial, event: Launching | Reported | RunEnded) -> None:
        match event:
            case Launching() if trial.state in ("waiting", "paused"):
                self._launch(trial, event)
            case Reported() if trial.state == "running" and event.report == trial.reports + 1:
                self._report(trial, event)
            case RunEnded() if trial.state == "running" and trial.run == event.run:
                self._end_run(trial, event)

    def _launch(self, trial: Trial, event: Launching) -> None:
        rung = self.rung_of(trial)
        if trial.state == "paused" and rung is not None:
            self.promoted[rung].add(trial.number)

        trial.runs.append(event)
        trial.state = "running"
        trial.reason = ""

    def _report(self, trial: Trial, event: Reported) -> None:
        value = math.nan if event.value is None else event.value
        trial.curve.append(value)
        trial.position = event.position
        trial.reported_by = trial.run

        if self.reached is None and self._is_target(value):
            self.reached = trial.number
        if event.report in self.definition.rungs:
            self.rungs[self.definition.rungs.index(event.report)][trial.number] = value

    def _is_target(self, value: float) -> bool:
        target = self.definition.target
        if target is None or not math.isfinite(value):
            return False
        return value >= target if self.definition.goal == "maximize" else value <= target

    def _end_run(self, trial: Trial, event: RunEnded) -> None:
        run = trial.runs[-1]
        most = 0.0 if event.outcome == "refused" else run.cap_usd or 0.0
        trial.spent_usd += most if event.usd is None else event.usd
        trial.seconds += event.seconds
        trial.reason = event.reason
        trial.cause = event.cause
        trial.failures += event.outcome == "failed"
        # A run that fails after its rung's report has reached the rung.
        after = "paused" if run.until is not None and trial.reports >= run.until else "waiting"

        if event.outcome == "failed":
            trial.state = after if trial.failures <= self.definition.retries else "failed"
        elif event.outcome == "interrupted":
            trial.state = after
        else:
            trial.state = "failed" if event.outcome == "refused" else event.outcome


def state_of(definition: Definition, events: Iterable[SweepEvent | None]) -> SweepState:
    """Return the state after these events."""
    state = SweepState.new(definition)
    for event in events:
        if event is not None:
            state.apply(event)

    return state
