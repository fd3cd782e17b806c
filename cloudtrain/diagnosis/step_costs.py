"""Cost of each possible cause of a slow run, as a share of its time.

The shares do not overlap: the wait of all ranks for a slow one is a cost of that rank, not of
communication. Communication is the wait of the rank that waits least.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import mean, median

from cloudtrain.runs.step_times import PhaseSums

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

BUSY = "data", "compute", "optimizer", "other"
"""Phases of a rank that make its peers wait."""

SMALL_MESSAGE_MB = 1.0
"""Maximum size of small gradients; even 1 Gbit/s sends them in 8 ms."""

SMALL_STEP_SECONDS = 0.025
"""Maximum computing time of a step that is too small for a separate process."""

SMALL_EXCESS_SECONDS = 0.01
"""Maximum delay of a rank in small steps that the machine's scheduling explains."""

OWN_EXCESS = 0.5
"""Minimum delay that is a rank's own, as a part of the shortest computing time."""

LASTING = 0.6
"""Minimum share of intervals whose slowest rank is a lasting straggler."""

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
    """Seconds without a core while it could have run, above the median of other ranks."""

    @property
    def by_other_work(self) -> bool:
        """True if other work causes at least half of its lateness."""
        return self.without_core >= self.seconds / 2


def find_straggler(ranks: Ranks) -> Straggler | None:
    """Return the rank that is busy while the others wait for it, or None."""
    if len(ranks) < 2:
        return None

    busy = {}
    for rank, sums in ranks.items():
        busy[rank] = sum(sums.seconds.get(phase, 0.0) for phase in BUSY)

    slowest = max(busy, key=lambda rank: busy[rank])
    excess = busy[slowest] - _median_of_others(busy, slowest)
    waits = {rank: sums.seconds.get("communication", 0.0) for rank, sums in ranks.items()}

    if excess <= 0 or _median_of_others(waits, slowest) - waits[slowest] < excess / 2:
        return None

    excess_by_phase = {}
    for phase in BUSY:
        seconds = {rank: sums.seconds.get(phase, 0.0) for rank, sums in ranks.items()}
        excess_by_phase[phase] = seconds[slowest] - _median_of_others(seconds, slowest)

    delays = {rank: sums.run_delay for rank, sums in ranks.items()}
    without_core = delays[slowest] - _median_of_others(delays, slowest)

    return Straggler(
        rank=slowest,
        seconds=excess,
        phase=max(excess_by_phase, key=lambda phase: excess_by_phase[phase]),
        without_core=without_core,
    )


def find_lasting_straggler(totals: Ranks, intervals: Sequence[Ranks]) -> Straggler | None:
    """Return the straggler of the whole run if most intervals have the same one."""
    straggler = find_straggler(totals)
    if straggler is None:
        return None

    stragglers = [find_straggler(ranks) for ranks in intervals]
    agreeing = sum(one is not None and one.rank == straggler.rank for one in stragglers)
    if agreeing < LASTING * len(stragglers):
        return None

    return straggler


def costs(ranks: Ranks, message_mb: float, straggler: Straggler | None) -> dict[str, float]:
    """Return the share of the time, 0 to 1, of each cause.

    Causes: input, straggler, other-work, communication, too-small, saving, evaluation.
    `straggler`: rank that all others wait for.
    """
    wall = median(sums.wall for sums in ranks.values())
    if wall <= 0:
        return {}

    too_small = _is_too_small(ranks, message_mb, straggler)
    seconds = {"input": _over(ranks, "data", _lower_median)}
    if straggler and not too_small:
        seconds[cause_of(straggler)] = straggler.seconds
    else:
        seconds["straggler"] = 0.0

    seconds["saving"] = _over(ranks, "saving", max)
    seconds["evaluation"] = _over(ranks, "evaluation", max)

    if too_small:
        seconds["too-small"] = _over(ranks, "communication", mean)
    elif message_mb >= SMALL_MESSAGE_MB:
        seconds["communication"] = _waits_for_messages(ranks)

    return {cause: min(1.0, spent / wall) for cause, spent in seconds.items()}


def cause_of(straggler: Straggler) -> str:
    """Return the cause of its lateness: straggler or other-work."""
    return "other-work" if straggler.by_other_work else "straggler"


def _waits_for_messages(ranks: Ranks) -> float:
    """Return the wait of the rank that waits least, without delays by other work on cores."""
    waits = []
    for rank, sums in ranks.items():
        delays = [peer_sums.run_delay for peer, peer_sums in ranks.items() if peer != rank]
        held_up = max(delays, default=0.0)
        waits.append(max(0.0, sums.seconds.get("communication", 0.0) - held_up))

    return min(waits)


def compute_share(ranks: Ranks) -> float:
    """Return the mean share of the time that ranks spend on computing."""
    wall = sum(sums.wall for sums in ranks.values())
    computing = 0.0
    for sums in ranks.values():
        computing += sums.seconds.get("compute", 0.0) + sums.seconds.get("optimizer", 0.0)

    return computing / wall


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
    """Return the lower median: a wait of one of two ranks means a straggler."""
    return sorted(values)[(len(values) - 1) // 2]


def _median_of_others(values: Mapping[int, float], rank: int) -> float:
    return median(value for peer, value in values.items() if peer != rank)


def without_single(shares: Mapping[str, float], intervals: Sequence[Ranks]) -> dict[str, float]:
    """Return the costs without a rare cause that occurred only once."""
    lasting = dict(shares)
    for cause in RARE:
        with_cause = 0
        for ranks in intervals:
            with_cause += any(sums.seconds.get(cause, 0.0) > 0 for sums in ranks.values())

        if with_cause < 2:
            lasting.pop(cause, None)

    return lasting


def largest_cost(shares: Mapping[str, float]) -> str:
    """Return the cause that takes most of the time; empty if none takes enough."""
    named = {cause: share for cause, share in shares.items() if share >= NAMED_FROM[cause]}
    return max(named, key=lambda cause: named[cause], default="")


def confidence_of(
    cause: str, intervals: Sequence[Ranks], message_mb: float, straggler: int | None
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
        agree = 0
        for shares in interval_costs:
            common = {name: share for name, share in shares.items() if name not in RARE}
            agree += largest_cost(common) == cause

    return (agree + 1) / (len(interval_costs) + 2)
