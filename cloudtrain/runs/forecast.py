"""How long a run will take, and what it will cost, with an interval: from the laps that it has
reported. Pure.

    found = forecast(state, terms_of(folder), now=time.time())
    found.total.likely, found.total.low, found.total.high      seconds, from its start to its end

What is left is added up of three parts: the steps, at the pace of the laps that were seen;
evaluations and checkpoints, as often as the program has announced them, or as they were seen to
come; and the end. Warm-up is counted once and never extrapolated. The interval is made to hold the
real time of 19 runs in 20; docs/figures.md counts.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from cloudtrain.runs.lap_pace import FLOOR, pace_of, trend_of
from cloudtrain.runs.laps import Pauses
from cloudtrain.runs.state import RunState
from cloudtrain.runs.terms import Terms

HOLDS = "19 of 20"
"""Target share of runs whose real time is in the interval."""

EVALUATION = 0.1, 0.35, 1.1
"""What an evaluation of a batch takes at least, likely and at most, as a part of a step with as
many samples: a forward pass of three passes; waiting for data takes as long as in a step. Used
until one was seen.
"""

UNSEEN = {"evaluating": 0.15, "saving": 0.05}
"""How much longer the rest may take for evaluations and checkpoints of which nothing is known, as a
part of it. It shrinks as more of the run passes without any.
"""

END = 0.0, 1.0, 6.0
"""Seconds from the last step, evaluation and checkpoint to the end of the run."""

LONGEST_SECONDS = 1e10
"""Longer forecasts are not shown: three hundred years."""

TOLD_FROM_SECONDS = 60.0
"""Minimum training time, after the first step, before an unrequested forecast."""

_Part = tuple[float, float, float]
"""At least, likely, at most; seconds."""


@dataclass(frozen=True, slots=True)
class Span:
    """A value with its interval."""

    low: float
    likely: float
    high: float

    def scaled(self, factor: float, more: float = 0.0) -> Span:
        """Return the span in another unit, plus an offset."""
        return Span(
            self.low * factor + more, self.likely * factor + more, self.high * factor + more
        )

    def to_json(self) -> dict[str, float]:
        """Return plain JSON."""
        return {
            "low": round(self.low, 3),
            "likely": round(self.likely, 3),
            "high": round(self.high, 3),
        }


@dataclass(frozen=True, kw_only=True, slots=True)
class Ending:
    """A limit that ends a run before its last step."""

    certainty: Literal["sure", "likely", "possible"]
    """Part of the interval beyond the limit: sure (all), likely (likely time), possible (end)."""
    limit: str
    """`limits.max_cost` or `limits.max_runtime`; empty: the platform's own."""
    seconds: float
    """Seconds from the start of the run to the limit."""
    step: int
    """Approximate last step."""
    needs: float
    """Limit that the end of the interval needs: US dollars for `limits.max_cost`, else seconds."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Forecast:
    """Forecast for a running job."""

    total: Span
    """Seconds from start to end, without further waits for machines."""
    left: Span
    """Remaining seconds."""
    usd: Span | None
    """Total cost at list price; None if free or unknown."""
    step: int
    steps: int
    """Current step and last step."""
    seen_steps: int
    seen_seconds: float
    """Duration of the laps behind the pace."""
    trend: Literal["slower", "faster", ""] = ""
    """True if steps get slower or faster all the time; the interval then includes it."""
    unseen: tuple[str, ...] = ()
    """`evaluating`, `saving`: what is still to come for the first time, so that the interval is
    wider.
    """
    ending: Ending | None = None

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON."""
        return {
            "total_seconds": self.total.to_json(),
            "left_seconds": self.left.to_json(),
            "usd": self.usd.to_json() if self.usd else None,
            "interval_holds": HOLDS,
            "step": self.step,
            "steps": self.steps,
            "seen": {"steps": self.seen_steps, "seconds": round(self.seen_seconds, 3)},
            "trend": self.trend or None,
            "unseen": list(self.unseen),
            "ends_early": asdict(self.ending) if self.ending else None,
        }


def forecast(state: RunState, terms: Terms | None = None, *, now: float) -> Forecast | None:
    """Return the forecast at `now`, a Unix timestamp, or None with too little information."""
    try:
        found = _forecast(state, terms, now)
    except (ArithmeticError, ValueError):  # a program may report numbers that no run has
        return None
    return found if found is not None and found.total.high < LONGEST_SECONDS else None


def _forecast(state: RunState, terms: Terms | None, now: float) -> Forecast | None:
    laps = state.laps
    steps = state.progress.steps if state.progress else None
    terms = terms or Terms()
    if (
        state.has_ended
        or not state.started
        or steps is None
        or len(laps.laps) < 2
        or not laps.seconds
    ):
        return None
    pace, spread = pace_of(laps.laps)
    rest = max(0.0, steps - laps.step)
    ahead = trend_of(laps.laps, rest)
    paces = [pace * (1 - spread), pace * (1 + spread)]
    if ahead is not None:
        paces += [ahead * (1 - FLOOR), ahead * (1 + FLOOR)]
        pace = (pace + ahead) / 2  # a trend may go on, or have been a machine's load
    parts: list[_Part] = [(rest * min(paces), rest * pace, rest * max(paces)), END]
    unseen = []
    for activity, part in (
        ("evaluating", _evaluating(state, steps, pace)),
        ("saving", _saving(state, steps, pace)),
    ):
        if part is None:
            unseen.append(activity)
            part = 0.0, 0.0, UNSEEN[activity] * rest * pace * rest / steps
        parts.append(part)
    other_pauses = (seen for activity, seen in laps.pauses.items() if activity not in UNSEEN)
    parts += [_repeated(seen, _times(state, seen, steps)) for seen in other_pauses]
    done = max(0.0, laps.time + laps.paused - state.started - state.waited)
    elapsed = max(done, (state.waiting_since or now) - state.started - state.waited)
    rest_of_all = _sum(parts)
    low, likely, high = (
        max(elapsed, done + each)
        for each in (rest_of_all.low, rest_of_all.likely, rest_of_all.high)
    )
    total = Span(low, likely, high)
    rate = terms.usd_per_hour if terms.is_billed else None
    return Forecast(
        total=total,
        left=total.scaled(1.0, -elapsed),
        usd=None if rate is None else total.scaled(rate / 3600, rate * terms.kept_seconds / 3600),
        step=int(laps.step),
        steps=int(steps),
        seen_steps=int(laps.steps),
        seen_seconds=laps.seconds,
        trend="" if ahead is None else "slower" if ahead > pace else "faster",
        unseen=tuple(unseen),
        ending=_ending(terms, total, done, int(laps.step), rest),
    )


def seconds_left(state: RunState, now: float) -> float | None:
    """Return the likely remaining seconds, or None if the number of steps is unknown."""
    found = forecast(state, now=now)
    return found.left.likely if found else state.eta_seconds(now)


def _evaluating(state: RunState, steps: float, pace: float) -> _Part | None:
    """Return the remaining evaluations, or None if nothing is known about them."""
    laps = state.laps
    schedule = state.schedule
    seen = laps.pauses.get("evaluating")
    if schedule is None or schedule.evaluations is None:
        return _repeated(seen, _times(state, seen, steps)) if seen else None
    left = schedule.evaluations - math.floor(schedule.evaluations * laps.step / steps + 1e-9)
    if left <= 0:
        return 0.0, 0.0, 0.0
    if seen:
        return _repeated(seen, left)
    if not (schedule.evaluation_samples and schedule.step_samples):
        return None
    as_steps = left * pace * schedule.evaluation_samples / schedule.step_samples
    waiting = max((sums.share("data") for sums in state.step_times.totals().values()), default=0.0)
    low, likely, high = EVALUATION
    return as_steps * low, as_steps * (waiting + (1 - waiting) * likely), as_steps * high


def _saving(state: RunState, steps: float, pace: float) -> _Part | None:
    """Return the remaining checkpoints, or None if nothing is known about them."""
    laps = state.laps
    schedule = state.schedule
    seen = laps.pauses.get("saving")
    if schedule is None:
        return _repeated(seen, _times(state, seen, steps)) if seen else None
    left = 1  # the last one
    if schedule.checkpoint_steps:
        left += int(steps // schedule.checkpoint_steps - laps.step // schedule.checkpoint_steps)
    if schedule.checkpoint_seconds:
        left += int((steps - laps.step) * pace // schedule.checkpoint_seconds)
    return _repeated(seen, max(1, left)) if seen else None


def _times(state: RunState, seen: Pauses, steps: float) -> int:
    """Return how often regular pauses will occur again."""
    laps = state.laps
    every = max(1.0, seen.steps / seen.count)
    return int((steps - laps.step + laps.trained - seen.steps) / every + 0.25)


def _repeated(seen: Pauses, times: int) -> _Part:
    return times * seen.shortest, times * seen.mean, times * seen.longest


def _sum(parts: Sequence[_Part]) -> Span:
    """Parts that differ from what is likely independently of each other."""
    likely = sum(part[1] for part in parts)
    below, above = (math.hypot(*(part[1] - part[at] for part in parts)) for at in (0, 2))
    return Span(likely - below, likely, likely + above)


def _ending(terms: Terms, total: Span, done: float, step: int, rest: float) -> Ending | None:
    """Return the effect of the time limit, or of the cost limit as time."""
    if not terms.seconds or terms.seconds >= total.high:
        return None
    needs = total.high
    rate = terms.usd_per_hour
    if terms.limit == "limits.max_cost" and rate is not None:
        needs = rate * (total.high + terms.overhead_seconds) / 3600
    share = (terms.seconds - done) / max(1e-9, total.likely - done)
    return Ending(
        certainty="sure"
        if terms.seconds < total.low
        else "likely"
        if terms.seconds < total.likely
        else "possible",
        limit=terms.limit,
        seconds=float(terms.seconds),
        step=int(step + rest * min(1.0, max(0.0, share))),
        needs=needs,
    )
