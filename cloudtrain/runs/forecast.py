"""Remaining time of a run, its cost until now, and its cost at the end. Pure.

    prediction = forecast(state, terms_of(folder), now=time.time())
    prediction.remaining, prediction.usd_so_far, prediction.usd

The remaining time counts the steps, at the pace of the observed laps, and of evaluations and
checkpoints, as often as the program announced or as observed. docs/figures.md has the measurement.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from cloudtrain.runs.laps import Pauses, pace_of
from cloudtrain.runs.record import Terms
from cloudtrain.runs.state import RunState
from cloudtrain.units import format_duration

HOUR = 3600

EVALUATION = 0.35
"""Time of evaluating a batch, as a fraction of a step of that size: one forward pass of three.

Used until an evaluation was observed.
"""

LONGEST_SECONDS = 1e10
"""Longer forecasts are not shown: three hundred years."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Forecast:
    """Forecast for a running job."""

    remaining: float | None
    """Remaining seconds, without further waits for machines; None if unknown."""
    usd_so_far: float | None
    """Cost until now at list price; None if free or unknown."""
    usd: float | None
    """Cost at the end at list price, with kept machines; None if free or unknown."""

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON."""
        usd_so_far = self.usd_so_far
        if usd_so_far is not None:
            usd_so_far = round(usd_so_far, 3)

        return {
            "left_seconds": _likely(self.remaining),
            "usd_so_far": usd_so_far,
            "usd": _likely(self.usd),
        }


def _likely(value: float | None) -> dict[str, float] | None:
    """Return a value under the key that it has had since it was part of an interval."""
    if value is None:
        return None

    return {"likely": round(value, 3)}


def forecast(state: RunState, terms: Terms | None = None, *, now: float) -> Forecast | None:
    """Return the forecast at `now`, a Unix timestamp; None if the run has ended or is unknown."""
    if state.has_ended or not state.started:
        return None

    terms = terms or Terms()
    remaining = remaining_seconds(state, now)
    so_far = usd_so_far(state, terms, now)
    usd = None

    if remaining is not None and so_far is not None and terms.usd_per_hour is not None:
        usd = so_far + terms.usd_per_hour * (remaining + terms.kept_seconds) / HOUR

    if remaining is None and so_far is None:
        return None

    return Forecast(remaining=remaining, usd_so_far=so_far, usd=usd)


def usd_so_far(state: RunState, terms: Terms, now: float) -> float | None:
    """Return the cost until now, or until the end, at list price; None if free or unknown."""
    if not state.started or not terms.is_billed or terms.usd_per_hour is None:
        return None

    # Machines taken away are free.
    if state.waiting_since:
        waits = now - state.waiting_since
    else:
        waits = 0.0

    return terms.usd_per_hour * max(0.0, state.seconds(now) - state.waited - waits) / HOUR


def remaining_seconds(state: RunState, now: float) -> float | None:
    """Return the remaining seconds, or None if the number of steps is unknown."""
    try:
        seconds = _remaining(state, now)
    except (ArithmeticError, ValueError):  # a program may report numbers that no run has
        seconds = None

    if seconds is None:
        seconds = state.eta_seconds(now)

    return seconds if seconds is not None and seconds < LONGEST_SECONDS else None


def _remaining(state: RunState, now: float) -> float | None:
    """Return the remaining seconds by laps and pauses; None with too few laps."""
    laps = state.laps
    steps = state.progress.steps if state.progress else None
    if state.has_ended or not state.started or steps is None:
        return None
    if len(laps.laps) < 2 or not laps.seconds:
        return None

    pace = pace_of(laps.laps)
    seconds = max(0.0, steps - laps.step) * pace
    seconds += _evaluating(state, steps, pace)
    seconds += _saving(state, steps, pace)

    for activity, pauses in laps.pauses.items():
        if activity not in ("evaluating", "saving"):
            seconds += _times(state, pauses, steps) * pauses.mean

    since_report = (state.waiting_since or now) - laps.time - laps.paused
    return max(0.0, seconds - max(0.0, since_report))


def _evaluating(state: RunState, steps: float, pace: float) -> float:
    """Return the seconds of the remaining evaluations; 0 if unknown."""
    laps = state.laps
    schedule = state.schedule
    pauses = laps.pauses.get("evaluating")

    if schedule is None or schedule.evaluations is None:
        if not pauses:
            return 0.0

        return _times(state, pauses, steps) * pauses.mean

    count = schedule.evaluations - math.floor(schedule.evaluations * laps.step / steps + 1e-9)
    if count <= 0:
        return 0.0
    if pauses:
        return count * pauses.mean
    if not (schedule.evaluation_samples and schedule.step_samples):
        return 0.0

    return count * pace * EVALUATION * schedule.evaluation_samples / schedule.step_samples


def _saving(state: RunState, steps: float, pace: float) -> float:
    """Return the seconds of the remaining checkpoints; 0 if unknown."""
    laps = state.laps
    schedule = state.schedule
    pauses = laps.pauses.get("saving")

    if pauses is None:
        return 0.0
    if schedule is None:
        return _times(state, pauses, steps) * pauses.mean

    count = 1  # the last one
    if schedule.checkpoint_steps:
        count += int(steps // schedule.checkpoint_steps - laps.step // schedule.checkpoint_steps)
    if schedule.checkpoint_seconds:
        count += int((steps - laps.step) * pace // schedule.checkpoint_seconds)

    return max(1, count) * pauses.mean


def _times(state: RunState, pauses: Pauses, steps: float) -> int:
    """Return how often regular pauses will occur again."""
    laps = state.laps
    every = max(1.0, pauses.steps / pauses.count)
    return int((steps - laps.step + laps.trained - pauses.steps) / every + 0.25)


def shown(forecast: Forecast) -> str:
    """Return `1 h 40 min left, about 1.20 USD so far, 11.40 USD at the end`."""
    parts = []
    if forecast.remaining is not None:
        parts.append(f"{format_duration(forecast.remaining)} left")

    parts += cost_parts(forecast)
    return ", ".join(parts)


def cost_parts(forecast: Forecast) -> list[str]:
    """Return `about 1.20 USD so far` and `11.40 USD at the end`, as far as known."""
    parts = []
    if forecast.usd_so_far is not None:
        parts.append(f"about {forecast.usd_so_far:.2f} USD so far")
    if forecast.usd is not None:
        parts.append(f"{forecast.usd:.2f} USD at the end")

    return parts
