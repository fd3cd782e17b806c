"""Verdict on a slow run: its cause, share of the time, confidence, and what to change.

 It is computed from step times without the first steps of a process. A cause is named if it costs
enough to be worth a change.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from cloudtrain.diagnosis.slowness_words import Setup, change_for, sentence_for
from cloudtrain.diagnosis.step_costs import (
    Ranks,
    compute_share,
    costs,
    find_lasting_straggler,
    find_straggler,
    run_delay_share,
)
from cloudtrain.runs.step_times import PHASES, StepTimesHistory
from cloudtrain.runs.utilization import Utilization

NAMED_FROM = {
    "input": 0.2,
    "communication": 0.2,
    "straggler": 0.25,
    "other-work": 0.25,
    "too-small": 0.3,
    "saving": 0.1,
    "evaluation": 0.3,
}
"""Minimum share of the time of a cause that is named."""

RARE = "saving", "evaluation"
"""Causes that are absent from most intervals."""

TOLD_FROM_DELAY = 0.2
"""Minimum share of the time without a core that is reported."""

LEAST_STEPS = 10
LEAST_SECONDS = 1.0
"""Minimum duration for a verdict, and minimum number of steps."""

BUSY_GPU_PERCENT = 40.0
"""Minimum use of a GPU that does not wait for its host."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Slowness:
    """Verdict on the speed of a run."""

    cause: str
    """Cause: input, communication, straggler, other-work, too-small, saving or evaluation.

    compute: the run is not slow; unknown: too little data.
    """
    rank: int | None = None
    """Straggler, or rank that shares its core with other work."""
    phase: str = ""
    """Slower phase of the straggler."""
    share: float = 0.0
    """Share of the time that the cause takes, 0 to 1; of `compute`, the share of computing."""
    confidence: float = 0.0
    """Confidence, 0 to 1: the share of the run that agrees, reduced for short runs."""
    sentence: str = ""
    """Verdict for people."""
    change: str = ""
    """Recommended change; empty for none."""
    run_delay: float = 0.0
    """Share of the time that ranks spend without a core."""
    shares: Mapping[str, float] | None = None
    """Mean share of the time over the ranks, by phase."""

    @property
    def gain(self) -> float:
        """Maximum speed-up without the cause."""
        return 1.0 if self.cause in ("compute", "unknown") else 1 / max(1 - self.share, 0.01)

    @property
    def is_slow(self) -> bool:
        """True if the run is slow for a known cause."""
        return self.cause not in ("compute", "unknown")

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON, with the gain."""
        return {**asdict(self), "gain": round(self.gain, 2)}


def why_slow(
    times: StepTimesHistory, setup: Setup, utilization: Utilization | None = None
) -> Slowness:
    """Return the verdict on a run until now."""
    totals = times.totals()
    intervals = times.intervals()
    wall = max((sums.wall for sums in totals.values()), default=0.0)
    if times.steps < LEAST_STEPS or wall < LEAST_SECONDS:
        return _without_times(times, setup, utilization)
    straggler = find_lasting_straggler(totals, intervals)
    shares = _without_single(costs(totals, times.message_mb, straggler), intervals)
    cause = _largest(shares)
    straggler = straggler if cause in ("straggler", "other-work") else None
    idle = _idle_gpu_share(utilization)
    if not cause and idle and setup.has_gpus:
        cause = "too-small"
        shares["too-small"] = idle
    share = shares[cause] if cause else compute_share(totals)
    verdict = Slowness(
        cause=cause or "compute",
        rank=straggler.rank if straggler else None,
        phase=straggler.phase if straggler else "",
        share=round(share, 3),
        confidence=round(
            _confidence(cause, intervals, times.message_mb, straggler.rank if straggler else None),
            2,
        ),
        run_delay=round(run_delay_share(totals), 3),
        shares={phase: round(_mean_share(totals, phase), 3) for phase in PHASES},
    )
    return _in_words(verdict, setup, idle)


def _without_times(
    times: StepTimesHistory, setup: Setup, utilization: Utilization | None
) -> Slowness:
    """Return a verdict by the use of GPUs, without step times."""
    percent = utilization.gpu_percent if utilization else None
    reports = bool(times.steps or times.warm_up)
    if reports or percent is None:
        few = (
            f"only {times.steps} steps after the first ones"
            if reports
            else "no step times were reported"
        )
        if times.steps >= LEAST_STEPS:
            few = "all steps after the first ones took less than a second"
        change = "" if reports or setup.trainer else _HOOK
        return Slowness(cause="unknown", sentence=f"not known: {few}", change=change)
    if percent < BUSY_GPU_PERCENT:
        sentence = (
            f"the GPUs were busy {percent:.0f} % of the time: what they waited for was not reported"
        )
        return Slowness(
            cause="unknown", share=round(1 - percent / 100, 3), sentence=sentence, change=_HOOK
        )
    return Slowness(
        cause="compute",
        share=round(percent / 100, 3),
        confidence=0.5,
        sentence=(
            f"it is not slow by what the launchers saw: the GPUs were busy {percent:.0f} % of the"
            " time"
        ),
    )


_HOOK = (
    "two lines in the program report it: from cloudtrain_job import timed; for batch in"
    " timed(loader): ..."
)


def _without_single(shares: Mapping[str, float], intervals: list[Ranks]) -> dict[str, float]:
    """Return the costs without a rare cause that occurred only once."""
    intervals_with = {
        cause: sum(
            any(sums.seconds.get(cause, 0.0) > 0 for sums in ranks.values()) for ranks in intervals
        )
        for cause in RARE
    }
    return {cause: share for cause, share in shares.items() if intervals_with.get(cause, 2) >= 2}


def _largest(shares: Mapping[str, float]) -> str:
    """Return the cause that takes most of the time; empty if none takes enough."""
    named = {cause: share for cause, share in shares.items() if share >= NAMED_FROM[cause]}
    return max(named, key=lambda cause: named[cause], default="")


def _confidence(
    cause: str, intervals: list[Ranks], message_mb: float, straggler: int | None
) -> float:
    """Return the share of intervals with the same verdict, by the rule of succession.

    For a rare cause, count the intervals that contain it.
    """
    interval_costs = [costs(ranks, message_mb, find_straggler(ranks)) for ranks in intervals]
    if cause in RARE:
        agree = sum(shares.get(cause, 0.0) > 0 for shares in interval_costs)
        return (agree + 1) / (agree + 2)
    if cause in ("straggler", "other-work"):
        named = [find_straggler(ranks) for ranks in intervals]
        agree = sum(straggling is not None and straggling.rank == straggler for straggling in named)
    else:
        agree = sum(
            _largest({k: v for k, v in shares.items() if k not in RARE}) == cause
            for shares in interval_costs
        )
    return (agree + 1) / (len(interval_costs) + 2)


def _idle_gpu_share(utilization: Utilization | None) -> float:
    percent = utilization.gpu_percent if utilization else None
    return 1 - percent / 100 if percent is not None and percent < BUSY_GPU_PERCENT else 0.0


def _mean_share(totals: Ranks, phase: str) -> float:
    return sum(sums.share(phase) for sums in totals.values()) / len(totals)


def _in_words(verdict: Slowness, setup: Setup, idle: float) -> Slowness:
    fields = {name: getattr(verdict, name) for name in Slowness.__dataclass_fields__}
    words = {
        "sentence": sentence_for(
            verdict.cause, verdict.share, setup, verdict.rank, verdict.phase, idle
        ),
        "change": change_for(verdict.cause, verdict.share, setup, verdict.rank, verdict.phase),
    }
    if verdict.cause == "compute" and verdict.run_delay >= TOLD_FROM_DELAY:
        words = {
            "sentence": f"it is not slow by itself, but {without_cores(verdict.run_delay)}",
            "change": change_for("other-work", verdict.share, setup, None, ""),
        }
    return Slowness(**{**fields, **words})


def without_cores(run_delay: float) -> str:
    """Return a sentence about the time that ranks spend without a core."""
    return (
        f"for {run_delay:.0%} of the time its ranks had no core: other work, or more ranks than"
        " cores"
    )
