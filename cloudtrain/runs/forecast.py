"""Forecast of duration and cost of a run, with an interval, from its reported laps. Pure.

    estimate = forecast(state, terms_of(folder), now=time.time())
    estimate.total.likely, estimate.total.low, estimate.total.high      seconds from start to end

The remaining time is the sum of three parts: the steps, at the pace of the observed laps;
evaluations and checkpoints, as often as the program announced or as observed; and the end. Warm-up
counts once and is never extrapolated. The interval should contain the real time of 19 runs in 20;
docs/figures.md has the measurement.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from cloudtrain.runs.laps import Pauses, pace_of
from cloudtrain.runs.record import Terms
from cloudtrain.runs.state import RunState
from cloudtrain.units import format_duration

HOLDS = "19 of 20"
"""Target share of runs whose real time is in the interval."""

EVALUATION = 0.1, 0.35, 1.1
"""Minimum, likely and maximum time of evaluating a batch, as a fraction of a step of that size.

Evaluation is one forward pass of a step's three; waiting for data takes as long as in a step. Used
until an evaluation was observed.
"""

UNSEEN = {"evaluating": 0.15, "saving": 0.05}
"""Extra time for evaluations and checkpoints of unknown cost, as a fraction of the remaining time.

It shrinks as more of the run passes without any.
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
    remaining: Span
    """Remaining seconds."""
    usd: Span | None
    """Total cost at list price; None if free or unknown."""
    step: int
    steps: int
    """Current step and last step."""
    seen_steps: int
    """Number of steps behind the pace."""
    unseen: tuple[str, ...] = ()
    """`evaluating`, `saving`: activities not observed yet, which widen the interval."""
    ending: Ending | None = None

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON."""
        return {
            "total_seconds": self.total.to_json(),
            "left_seconds": self.remaining.to_json(),
            "usd": self.usd.to_json() if self.usd else None,
            "interval_holds": HOLDS,
            "step": self.step,
            "steps": self.steps,
            "seen_steps": self.seen_steps,
            "unseen": list(self.unseen),
            "ends_early": asdict(self.ending) if self.ending else None,
        }


def forecast(state: RunState, terms: Terms | None = None, *, now: float) -> Forecast | None:
    """Return the forecast at `now`, a Unix timestamp, or None with too little information."""
    try:
        result = _forecast(state, terms, now)
    except (ArithmeticError, ValueError):  # a program may report numbers that no run has
        return None

    return result if result is not None and result.total.high < LONGEST_SECONDS else None


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
    steps_left = max(0.0, steps - laps.step)
    seconds_left = steps_left * pace
    parts: list[_Part] = [
        (seconds_left * (1 - spread), seconds_left, seconds_left * (1 + spread)),
        END,
    ]
    unseen = []

    for activity, part in (
        ("evaluating", _evaluating(state, steps, pace)),
        ("saving", _saving(state, steps, pace)),
    ):
        if part is None:
            unseen.append(activity)
            part = 0.0, 0.0, UNSEEN[activity] * seconds_left * steps_left / steps

        parts.append(part)

    other_pauses = (pauses for activity, pauses in laps.pauses.items() if activity not in UNSEEN)
    parts += [_repeated(pauses, _times(state, pauses, steps)) for pauses in other_pauses]

    seconds_done = max(0.0, laps.time + laps.paused - state.started - state.waited)
    elapsed = max(seconds_done, (state.waiting_since or now) - state.started - state.waited)
    rest_of_all = _sum(parts)
    low, likely, high = (
        max(elapsed, seconds_done + seconds)
        for seconds in (rest_of_all.low, rest_of_all.likely, rest_of_all.high)
    )
    total = Span(low, likely, high)

    rate = terms.usd_per_hour if terms.is_billed else None
    return Forecast(
        total=total,
        remaining=total.scaled(1.0, -elapsed),
        usd=None if rate is None else total.scaled(rate / 3600, rate * terms.kept_seconds / 3600),
        step=int(laps.step),
        steps=int(steps),
        seen_steps=int(laps.steps),
        unseen=tuple(unseen),
        ending=_ending(terms, total, seconds_done, int(laps.step), steps_left),
    )


def remaining_seconds(state: RunState, now: float) -> float | None:
    """Return the likely remaining seconds, or None if the number of steps is unknown."""
    result = forecast(state, now=now)
    return result.remaining.likely if result else state.eta_seconds(now)


def _evaluating(state: RunState, steps: float, pace: float) -> _Part | None:
    """Return the time of the remaining evaluations, or None if unknown."""
    laps = state.laps
    schedule = state.schedule
    pauses = laps.pauses.get("evaluating")

    if schedule is None or schedule.evaluations is None:
        return _repeated(pauses, _times(state, pauses, steps)) if pauses else None

    count = schedule.evaluations - math.floor(schedule.evaluations * laps.step / steps + 1e-9)
    if count <= 0:
        return 0.0, 0.0, 0.0
    if pauses:
        return _repeated(pauses, count)
    if not (schedule.evaluation_samples and schedule.step_samples):
        return None

    as_steps = count * pace * schedule.evaluation_samples / schedule.step_samples
    waiting = max((sums.share("data") for sums in state.step_times.totals().values()), default=0.0)
    low, likely, high = EVALUATION

    return as_steps * low, as_steps * (waiting + (1 - waiting) * likely), as_steps * high


def _saving(state: RunState, steps: float, pace: float) -> _Part | None:
    """Return the time of the remaining checkpoints, or None if unknown."""
    laps = state.laps
    schedule = state.schedule
    pauses = laps.pauses.get("saving")

    if schedule is None:
        return _repeated(pauses, _times(state, pauses, steps)) if pauses else None

    count = 1  # the last one
    if schedule.checkpoint_steps:
        count += int(steps // schedule.checkpoint_steps - laps.step // schedule.checkpoint_steps)
    if schedule.checkpoint_seconds:
        count += int((steps - laps.step) * pace // schedule.checkpoint_seconds)

    return _repeated(pauses, max(1, count)) if pauses else None


def _times(state: RunState, pauses: Pauses, steps: float) -> int:
    """Return how often regular pauses will occur again."""
    laps = state.laps
    every = max(1.0, pauses.steps / pauses.count)
    return int((steps - laps.step + laps.trained - pauses.steps) / every + 0.25)


def _repeated(pauses: Pauses, times: int) -> _Part:
    return times * pauses.shortest, times * pauses.mean, times * pauses.longest


def _sum(parts: Sequence[_Part]) -> Span:
    """Return the sum of parts whose deviations are independent of each other."""
    likely = sum(part[1] for part in parts)
    below, above = (math.hypot(*(part[1] - part[at] for part in parts)) for at in (0, 2))
    return Span(likely - below, likely, likely + above)


def _ending(
    terms: Terms, total: Span, seconds_done: float, step: int, steps_left: float
) -> Ending | None:
    """Return the effect of the time limit, or of the cost limit as time."""
    if not terms.seconds or terms.seconds >= total.high:
        return None

    needs = total.high
    rate = terms.usd_per_hour
    if terms.limit == "limits.max_cost" and rate is not None:
        needs = rate * (total.high + terms.overhead_seconds) / 3600

    share = (terms.seconds - seconds_done) / max(1e-9, total.likely - seconds_done)

    certainty: Literal["sure", "likely", "possible"] = "possible"
    if terms.seconds < total.low:
        certainty = "sure"
    elif terms.seconds < total.likely:
        certainty = "likely"

    return Ending(
        certainty=certainty,
        limit=terms.limit,
        seconds=float(terms.seconds),
        step=int(step + steps_left * min(1.0, max(0.0, share))),
        needs=needs,
    )


_UNSEEN_NAMES = {"evaluating": "evaluation", "saving": "checkpoint"}
_ENDS = {"sure": "will stop", "likely": "will probably stop", "possible": "may stop"}


def in_all(forecast: Forecast) -> str:
    """Return `1 h 52 min in all (1 h 45 min to 2 h 3 min), 11.40 USD (10.70 to 12.50)`."""
    text = f"{format_duration(forecast.total.likely)} in all ({_interval(forecast.total, format_duration)})"
    if forecast.usd is not None:
        text += (
            f", {forecast.usd.likely:.2f} USD ({_interval(forecast.usd, lambda usd: f'{usd:.2f}')})"
        )

    return text


def caveat(forecast: Forecast) -> str:
    """Return the reason for a wide interval, such as `no evaluation was seen yet`, or ""."""
    kinds = " and no ".join(_UNSEEN_NAMES[kind] for kind in forecast.unseen)
    return f"no {kinds} was seen yet" if kinds else ""


def shown(forecast: Forecast) -> str:
    """Return the forecast in one line with its caveat."""
    return "; ".join(filter(None, (in_all(forecast), caveat(forecast))))


def limit_warning(forecast: Forecast) -> str:
    """Return the effect of a limit and the limit that the run needs, or ""."""
    ending = forecast.ending
    if ending is None:
        return ""

    limit = ending.limit or "the platform's time limit"
    at = f"after {format_duration(ending.seconds)}, at about step {ending.step} of {forecast.steps}"
    return f"{limit} {_ENDS[ending.certainty]} this run {at}: it needs {in_all(forecast)}"


def told_once(forecast: Forecast, run_id: str) -> str:
    """Return the warning of a likely limit with the next command, or ""."""
    if forecast.ending is None or forecast.ending.certainty == "possible":
        return ""
    raised = shlex.join(["cloudtrain", "rerun", run_id, "--set", raised_limit(forecast)])
    return f"{limit_warning(forecast)}. To have it end: cloudtrain stop {run_id}, then {raised}"


def raised_limit(forecast: Forecast) -> str:
    """Return `limits.max_cost=13 USD`, enough for the end of the interval, or ""."""
    if forecast.ending is None:
        return ""

    needs = forecast.ending.needs
    if forecast.ending.limit == "limits.max_cost":
        usd = math.ceil(needs) if needs >= 10 else math.ceil(needs * 100) / 100
        return f"limits.max_cost={usd:g} USD"

    unit = 1
    if needs > 86400:
        unit = 3600
    elif needs > 60:
        unit = 60

    return f"limits.max_runtime={format_duration(math.ceil(needs / unit) * unit)}"


def _interval(span: Span, write: Callable[[float], str]) -> str:
    return f"{write(span.low)} to {write(span.high)}"
