"""Where the time of each rank went, by its `step_times` events: sums over intervals of steps, in
bounded memory.

times = store.get(run_id).state().step_times times.totals()[0].seconds["data"]       what rank 0
waited for data, in seconds times.intervals()                       oldest first, each with the sums
of all ranks that have reported it
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass, field

from cloudtrain_launcher.events import StepTimes

PHASES = "data", "compute", "communication", "optimizer", "saving", "evaluation", "other"
"""What a rank does; each moment is in exactly one of them."""

KEPT_INTERVALS = 64
"""Intervals that are kept at least, once there are so many; with twice as many, two become one."""


@dataclass(slots=True)
class PhaseSums:
    """What one rank did in some steps."""

    steps: int = 0
    samples: int = 0
    """Over all ranks."""
    wall: float = 0.0
    """Seconds."""
    seconds: dict[str, float] = field(default_factory=dict)
    """Seconds by phase; a phase that was never reported is missing."""
    run_delay: float = 0.0
    """Seconds, within the phases, in which the rank could have run and had no core; 0 where it is
    not known.
    """

    def add(self, other: PhaseSums) -> None:
        """Further steps."""
        self.steps = self.steps + other.steps
        self.samples = self.samples + other.samples
        self.wall = self.wall + other.wall
        self.run_delay += other.run_delay
        for phase, seconds in other.seconds.items():
            self.seconds[phase] = self.seconds.get(phase, 0.0) + seconds

    def share(self, phase: str) -> float:
        """The part of the time that a phase took, 0 to 1."""
        return self.seconds.get(phase, 0.0) / self.wall if self.wall > 0 else 0.0


def sums_of(event: StepTimes) -> PhaseSums:
    """The sums of one event."""
    seconds = {phase: value for phase in PHASES if (value := getattr(event, phase)) is not None}
    return PhaseSums(
        event.steps,
        event.samples or 0,
        max(0.0, event.wall),
        seconds,
        max(0.0, event.run_delay or 0.0),
    )


@dataclass(slots=True)
class StepTimesHistory:
    """The step times of a run, as they come."""

    warm_up: dict[int, PhaseSums] = field(default_factory=dict)
    """By rank: the first steps of its process, and of each restart."""
    outside: dict[int, PhaseSums] = field(default_factory=dict)
    """By rank: what came after the last step, such as the last checkpoint."""
    message_mb: float = 0.0
    """Gradients that a step exchanges, in MB (1e6 bytes)."""
    _ends: list[int] = field(default_factory=list)
    """The last step of each interval, rising."""
    _intervals: list[dict[int, PhaseSums]] = field(default_factory=list)
    """By rank."""

    def add(self, event: StepTimes) -> None:
        """The next event of a rank. Ranks may come in any order, and steps again after a restart."""
        self.message_mb = event.message_mb or self.message_mb
        if event.warm_up or not event.steps:
            _add(self.warm_up if event.warm_up else self.outside, event.rank, sums_of(event))
            return
        step = event.step or 0
        at = bisect_left(self._ends, step)
        if at == len(self._ends):
            self._ends.append(step)
            self._intervals.append({})
        _add(self._intervals[at], event.rank, sums_of(event))
        if len(self._ends) > 2 * KEPT_INTERVALS:
            self._halve()

    def intervals(self) -> list[Mapping[int, PhaseSums]]:
        """Oldest first: the sums by rank of the steps in one interval, without the first steps of a
        process.

        Ranks report by the clock, and not all at the same step: an interval goes on until all have
        reported that report as a rule, so that what they did can be compared.
        """
        expected = {rank for rank, sums in self.totals().items() if 2 * sums.steps >= self.steps}
        found: list[dict[int, PhaseSums]] = []
        for number, part in enumerate(self._intervals):
            if number == 0 or expected <= found[-1].keys():
                found.append({})
            for rank, sums in part.items():
                _add(found[-1], rank, sums)
        if len(found) > 1 and not expected <= found[-1].keys():
            for rank, sums in found.pop().items():
                _add(found[-1], rank, sums)
        return list(found)

    def totals(self) -> dict[int, PhaseSums]:
        """By rank: the sums of all intervals."""
        found: dict[int, PhaseSums] = {}
        for interval in self._intervals:
            for rank, sums in interval.items():
                _add(found, rank, sums)
        return dict(sorted(found.items()))

    @property
    def steps(self) -> int:
        """The steps in the intervals, as the rank with most has counted them."""
        return max((sums.steps for sums in self.totals().values()), default=0)

    def _halve(self) -> None:
        """Make one interval of two; the latest stays, since ranks may still report it."""
        ends = self._ends
        intervals = self._intervals
        for at in range(0, len(intervals) - 2, 2):
            for rank, sums in intervals[at].items():
                _add(intervals[at + 1], rank, sums)
        keep = [*range(1, len(intervals) - 1, 2), len(intervals) - 1]
        self._ends = [ends[at] for at in keep]
        self._intervals = [intervals[at] for at in keep]


def _add(to: dict[int, PhaseSums], rank: int, sums: PhaseSums) -> None:
    to.setdefault(rank, PhaseSums()).add(sums)
