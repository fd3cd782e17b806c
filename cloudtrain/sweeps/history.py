"""Objective and cost of a sweep at each end of a run, from its journal."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from cloudtrain.sweeps.definition import Definition
from cloudtrain.sweeps.events import Launching, Reported, RunEnded, Suggested, SweepEvent
from cloudtrain.sweeps.state import SweepState


@dataclass(frozen=True, kw_only=True, slots=True)
class Moment:
    """End of one run of a trial."""

    trial: int
    state: str
    """State of the trial from then on."""
    value: float | None
    """Latest value of the trial; None if there is none, or it is not a finite number."""
    best: float | None
    """Value of the best trial until then."""
    usd: float
    """Cost of all runs that had ended."""
    seconds: float
    """Seconds since the first suggestion, without pauses before `sweep more`."""


def history(definition: Definition, events: Iterable[SweepEvent | None]) -> Sequence[Moment]:
    """Return the moment of each end of a run."""
    state = SweepState.new(definition)
    moments = []
    for event in events:
        if event is None:
            continue
        state.apply(event)
        if isinstance(event, RunEnded) and 0 <= event.trial < len(state.trials):
            trial = state.trials[event.trial]
            best = state.best
            value = trial.value
            moments.append(
                Moment(
                    trial=trial.number,
                    state=trial.state,
                    value=value if value is not None and math.isfinite(value) else None,
                    best=best.value if best else None,
                    usd=state.spent_usd,
                    seconds=max(0.0, event.time - state.started),
                )
            )
    return moments


def heard_of(events: Iterable[SweepEvent | None]) -> Mapping[int, tuple[float, float]]:
    """Return the times of the suggestion and of the latest event of each trial."""
    ends: dict[int, tuple[float, float]] = {}
    for event in events:
        if isinstance(event, Suggested):
            ends.setdefault(event.trial, (event.time, event.time))
        elif isinstance(event, (Launching, Reported, RunEnded)) and event.trial in ends:
            first, last = ends[event.trial]
            ends[event.trial] = first, max(last, event.time)
    return ends
