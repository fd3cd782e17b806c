"""What the events of a drilled job tell: how far each start of its ranks had got, and from where
the next went on.
"""

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
    """One start of the ranks: the first of a run, or a restart in place."""

    steps: list[float] = field(default_factory=list)
    """The steps that were reported, in order."""
    saved: list[float] = field(default_factory=list)
    """The steps of the checkpoints that were reported, in order."""
    resumed_at: float | None = None
    """The step of the checkpoint that it went on from, if the program has said so."""


@dataclass(kw_only=True, slots=True)
class RunHistory:
    """One run of a drilled job."""

    attempts: list[Attempt] = field(default_factory=list)
    """Those that have reported something; at least one."""
    restart_reasons: list[str] = field(default_factory=list)
    """Why the ranks were restarted in place, each reason once, as the node says it that knows."""
    stopping_seconds: float | None = None
    """From the stop to the end of the run; None if it was not stopped."""
    ended: float = 0.0
    """Unix timestamp; 0: it goes on."""

    @property
    def last_step(self) -> float | None:
        """The last step that was reported; None for a program that reports none."""
        return max((step for attempt in self.attempts for step in attempt.steps), default=None)

    @property
    def steps_apart(self) -> float:
        """The most steps between two checkpoints that were reported; 0 for fewer than two."""
        pairs = (pair for attempt in self.attempts for pair in pairwise(attempt.saved))
        return max((after - before for before, after in pairs), default=0.0)


def history_of(events: Iterable[Event]) -> RunHistory:
    """The history of one run by its events, in the order in which they were written."""
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
                if attempt.steps or attempt.resumed_at is not None:  # each node reports the restart
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
    """The usual distance between two reports: the smallest one; 1 where that cannot be told."""
    known = sorted(set(steps))
    return min((after - before for before, after in pairwise(known)), default=1.0)


def began_anew(runs: Sequence[RunHistory], reference: RunHistory) -> bool:
    """Whether a start of the ranks did the first step again that is reported, after more than that
    had been done.
    """
    first = min(
        (step for attempt in reference.attempts for step in attempt.steps[:1]), default=None
    )
    attempts = [attempt for run in runs for attempt in run.attempts]
    reached = 0.0
    for number, attempt in enumerate(attempts):
        again = number and attempt.steps and attempt.resumed_at is None
        if again and first is not None and attempt.steps[0] <= first < reached:
            return True
        reached = max([reached, *attempt.steps, *attempt.saved])
    return False


def steps_done_again(runs: Sequence[RunHistory], reference: RunHistory) -> float | None:
    """How many steps were lost: done by one start of the ranks, and again by the next. None if no
    steps are reported.

    A program that does not say where it has resumed has done so one report before the first that it
    makes.
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
