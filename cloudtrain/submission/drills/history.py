"""History of a drilled job: progress of each start of its ranks, and its resume point."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from cloudtrain_launcher.events import (
    RESTART_ELSEWHERE,
    Checkpoint,
    Ended,
    Event,
    Metrics,
    Progress,
    Restarted,
    Resumed,
    StopRequested,
)


@dataclass(kw_only=True, slots=True)
class Attempt:
    """Start of the ranks: the first of a run, or a restart in place."""

    steps: list[float] = field(default_factory=list)
    """Reported steps in order."""
    saved: list[float] = field(default_factory=list)
    """Steps of reported checkpoints in order."""
    resumed_at: float | None = None
    """Step of the checkpoint that it resumed from, if reported."""


@dataclass(kw_only=True, slots=True)
class RunHistory:
    """History of one run of a drilled job."""

    attempts: list[Attempt] = field(default_factory=list)
    """Attempts with reports; at least one."""
    restart_reasons: list[str] = field(default_factory=list)
    """Distinct reasons for restarts in place, from the responsible node."""
    stopping_seconds: float | None = None
    """Seconds from the stop to the end of the run; None if it was not stopped."""
    ended: float = 0.0
    """Unix timestamp of the end; 0: it continues."""

    @property
    def last_step(self) -> float | None:
        """Last reported step; None for a program without steps."""
        return max((step for attempt in self.attempts for step in attempt.steps), default=None)


def history_of(events: Iterable[Event]) -> RunHistory:
    """Return the history of one run from its events, in the order of writing."""
    history = RunHistory()
    attempt = Attempt()
    stopped = 0.0
    for event in events:
        match event:
            case Restarted():
                if (
                    event.why not in ("", RESTART_ELSEWHERE)
                    and event.why not in history.restart_reasons
                ):
                    history.restart_reasons.append(event.why)
                # Every node reports the restart.
                if attempt.steps or attempt.resumed_at is not None:
                    history.attempts.append(attempt)
                    attempt = Attempt()
            case Resumed() if event.step is not None:
                attempt.resumed_at = event.step
            case Metrics() | Progress() if event.step is not None:
                attempt.steps.append(event.step)
            case Checkpoint() if event.step is not None:
                attempt.saved.append(event.step)
            case StopRequested():
                stopped = event.time
            case Ended():
                history.ended = event.time
    history.attempts.append(attempt)
    if stopped and history.ended:
        history.stopping_seconds = max(0.0, history.ended - stopped)
    return history


def stride(steps: Sequence[float]) -> float:
    """Return the smallest distance between two reports, or 1 if unknown."""
    unique = sorted(set(steps))
    return min((after - before for before, after in pairwise(unique)), default=1.0)


def began_anew(runs: Sequence[RunHistory], reference: RunHistory) -> bool:
    """Return whether a restart repeated the first reported step after later ones."""
    first = min(
        (step for attempt in reference.attempts for step in attempt.steps[:1]), default=None
    )
    attempts = [attempt for run in runs for attempt in run.attempts]
    reached = 0.0
    for number, attempt in enumerate(attempts):
        is_restart = number and attempt.steps and attempt.resumed_at is None
        if is_restart and first is not None and attempt.steps[0] <= first < reached:
            return True
        reached = max([reached, *attempt.steps, *attempt.saved])
    return False


def steps_done_again(runs: Sequence[RunHistory], reference: RunHistory) -> float | None:
    """Return the number of steps that a restart repeated, or None without reported steps.

    A program without a reported resume point resumed one report before its first.
    """
    between = stride([step for attempt in reference.attempts for step in attempt.steps])
    attempts = [attempt for run in runs for attempt in run.attempts]
    if reference.last_step is None:
        return None
    lost = 0.0
    reached = 0.0
    for number, attempt in enumerate(attempts):
        if number and (attempt.steps or attempt.resumed_at is not None):
            begun = attempt.resumed_at
            if begun is None:
                begun = max(0.0, attempt.steps[0] - between)
            lost += max(0.0, reached - begun)
            reached = begun
        reached = max([reached, *attempt.steps, *attempt.saved])
    return lost
