"""Cost of each possible cause of a slow run, as a share of its time.

The shares do not overlap: the wait of all ranks for a slow one is a cost of that rank, not of
communication. Communication is the wait of the rank that waits least.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import mean, median

from cloudtrain.runs.step_times import PhaseSums

BUSY = "data", "compute", "optimizer", "other"
"""Phases in which a rank makes its peers wait."""

SMALL_MESSAGE_MB = 1.0
"""Gradients that even a network of 1 Gbit/s sends in 8 ms: longer waits are not for their size."""

SMALL_STEP_SECONDS = 0.025
"""A rank that computes for longer in a step has enough to do, and a process of its own is worth it.
"""

SMALL_EXCESS_SECONDS = 0.01
"""In small steps a rank that takes less than this longer than others may be late by its machine's
scheduling.
"""

OWN_EXCESS = 0.5
"""Part of the others' computing by which a rank is late by itself, where it is known how long it
had no core.
"""

LASTING = 0.6
"""Least share of intervals in which a lasting straggler is the slowest."""

Ranks = Mapping[int, PhaseSums]
"""Phases of each rank in the same steps."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Straggler:
    """Rank that others wait for."""

    rank: int
    seconds: float
    """Seconds that it was busy longer than others."""
    phase: str
    """Phase with most of that time."""
    without_core: float = 0.0
    """Seconds in which it could have run and had no core, beyond those of others."""

    @property
    def by_other_work(self) -> bool:
        """True if other work causes at least half of its lateness."""
        return self.without_core >= self.seconds / 2


def find_straggler(ranks: Ranks) -> Straggler | None:
    """Return the rank that is busy while the others wait for it, or None."""
    if len(ranks) < 2:
        return None
    busy = {
        rank: sum(sums.seconds.get(phase, 0.0) for phase in BUSY) for rank, sums in ranks.items()
    }
    slowest = max(busy, key=lambda rank: busy[rank])
    excess = busy[slowest] - _median_of_others(busy, slowest)
    waits = {rank: sums.seconds.get("communication", 0.0) for rank, sums in ranks.items()}
    if excess <= 0 or _median_of_others(waits, slowest) - waits[slowest] < excess / 2:
        return None
    by_phase = {
        phase: {rank: sums.seconds.get(phase, 0.0) for rank, sums in ranks.items()}
        for phase in BUSY
    }
    phase = max(
        BUSY, key=lambda name: by_phase[name][slowest] - _median_of_others(by_phase[name], slowest)
    )
    delays = {rank: sums.run_delay for rank, sums in ranks.items()}
    without_core = delays[slowest] - _median_of_others(delays, slowest)
    return Straggler(rank=slowest, seconds=excess, phase=phase, without_core=without_core)


def find_lasting_straggler(totals: Ranks, intervals: Sequence[Ranks]) -> Straggler | None:
    """Return the straggler of the whole run, if it is also that of most intervals."""
    straggler = find_straggler(totals)
    if straggler is None:
        return None
    stragglers = [find_straggler(ranks) for ranks in intervals]
    agreeing = sum(one is not None and one.rank == straggler.rank for one in stragglers)
    return straggler if agreeing >= LASTING * len(stragglers) else None


def costs(ranks: Ranks, message_mb: float, straggler: Straggler | None) -> dict[str, float]:
    """Share of the time, 0 to 1, by cause: input, straggler, other-work, communication, too-small,
    saving, evaluation.

    `straggler`: the rank that all others wait for.
    """
    wall = median(sums.wall for sums in ranks.values())
    if wall <= 0:
        return {}
    too_small = _is_too_small(ranks, message_mb, straggler)
    straggler = None if too_small else straggler
    seconds = {
        "input": _over(ranks, "data", _lower_median),
        cause_of(straggler): straggler.seconds if straggler else 0.0,
        "saving": _over(ranks, "saving", max),
        "evaluation": _over(ranks, "evaluation", max),
    }
    if too_small:
        seconds["too-small"] = _over(ranks, "communication", mean)
    elif message_mb >= SMALL_MESSAGE_MB:
        seconds["communication"] = _waits_for_messages(ranks)
    return {cause: min(1.0, spent / wall) for cause, spent in seconds.items()}


def cause_of(straggler: Straggler | None) -> str:
    """Return the cause of its lateness: straggler or other-work."""
    return "other-work" if straggler is not None and straggler.by_other_work else "straggler"


def _waits_for_messages(ranks: Ranks) -> float:
    """Return the wait of the rank that waits least, without delays by other work on cores."""
    waits = []
    for rank, sums in ranks.items():
        held_up = max(
            (other.run_delay for each, other in ranks.items() if each != rank), default=0.0
        )
        waits.append(max(0.0, sums.seconds.get("communication", 0.0) - held_up))
    return min(waits)


def run_delay_share(ranks: Ranks) -> float:
    """Return the mean share of the time in which ranks had no core."""
    wall = sum(sums.wall for sums in ranks.values())
    return sum(sums.run_delay for sums in ranks.values()) / wall if wall > 0 else 0.0


def compute_share(ranks: Ranks) -> float:
    """Return the mean share of the time in which ranks computed."""
    wall = sum(sums.wall for sums in ranks.values())
    return (
        sum(
            sums.seconds.get("compute", 0.0) + sums.seconds.get("optimizer", 0.0)
            for sums in ranks.values()
        )
        / wall
    )


def _is_too_small(ranks: Ranks, message_mb: float, straggler: Straggler | None) -> bool:
    """Return True if steps and messages are so small that ranks mostly agree with each other.

    With short messages and long steps ranks wait in turn, as on a busy machine: that is not a
    cause.
    """
    if len(ranks) < 2 or message_mb >= SMALL_MESSAGE_MB:
        return False
    steps = max(1, max(sums.steps for sums in ranks.values()))
    shortest = _over(ranks, "compute", min)
    if shortest / steps >= SMALL_STEP_SECONDS:
        return False
    if straggler is None:
        return True
    is_known = any(sums.run_delay > 0 for sums in ranks.values())
    is_own = is_known and straggler.seconds - straggler.without_core >= OWN_EXCESS * shortest
    return not is_own and straggler.seconds / steps < SMALL_EXCESS_SECONDS


def _over(ranks: Ranks, phase: str, choose: Callable[[list[float]], float]) -> float:
    return choose([sums.seconds.get(phase, 0.0) for sums in ranks.values()])


def _lower_median(values: list[float]) -> float:
    """Return the lower median: a wait for data on one of two ranks alone is that of a straggler."""
    return sorted(values)[(len(values) - 1) // 2]


def _median_of_others(values: Mapping[int, float], rank: int) -> float:
    return median(value for other, value in values.items() if other != rank)
