"""Time of each rank by phase, in bounded memory, and mean utilization of GPUs.

times = store.get(run_id).state().step_times
times.totals()[0].seconds["data"]      seconds that rank 0 waited for data
times.intervals()                      oldest first, each with the sums of all its ranks
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from cloudtrain_wire.events import StepTimes, Usage

PHASES = "data", "compute", "communication", "optimizer", "saving", "evaluation", "other"
"""Phases of a rank; each moment is in exactly one."""

KEPT_INTERVALS = 64
"""Minimum number of intervals to keep; at twice as many, pairs are merged."""


@dataclass(slots=True)
class PhaseSums:
    """Time of one rank in some steps."""

    steps: int = 0
    wall: float = 0.0
    """Seconds."""
    seconds: dict[str, float] = field(default_factory=dict)
    """Seconds by phase; a phase that was never reported is missing."""
    run_delay: float = 0.0
    """Seconds of waiting for a core within the phases; 0 if unknown."""

    def add(self, more: PhaseSums) -> None:
        """Add further steps."""
        self.steps += more.steps
        self.wall += more.wall
        self.run_delay += more.run_delay

        for phase, seconds in more.seconds.items():
            self.seconds[phase] = self.seconds.get(phase, 0.0) + seconds

    def share(self, phase: str) -> float:
        """Return the share of the time of a phase, 0 to 1."""
        if self.wall > 0:
            return self.seconds.get(phase, 0.0) / self.wall

        return 0.0


def sums_of(event: StepTimes) -> PhaseSums:
    """Return the sums of one event."""
    seconds = {phase: value for phase in PHASES if (value := getattr(event, phase)) is not None}
    return PhaseSums(
        event.steps,
        max(0.0, event.wall),
        seconds,
        max(0.0, event.run_delay or 0.0),
    )


@dataclass(slots=True)
class StepTimesHistory:
    """Step times of a run, added event by event."""

    warm_up: dict[int, PhaseSums] = field(default_factory=dict)
    """Sums by rank of the first steps of each process."""
    message_mb: float = 0.0
    """Size of the gradients of a step in MB (1e6 bytes)."""
    _ends: list[int] = field(default_factory=list)
    """Last step of each interval, ascending."""
    _intervals: list[dict[int, PhaseSums]] = field(default_factory=list)
    """Sums by rank of each interval."""

    def add(self, event: StepTimes) -> None:
        """Add an event. Ranks come in any order, and steps repeat after a restart."""
        self.message_mb = event.message_mb or self.message_mb
        if event.warm_up:
            _add(self.warm_up, event.rank, sums_of(event))
            return

        if not event.steps:
            return  # time after the last step, such as a last checkpoint

        step = event.step or 0
        at = bisect_left(self._ends, step)
        if at == len(self._ends):
            self._ends.append(step)
            self._intervals.append({})

        _add(self._intervals[at], event.rank, sums_of(event))
        if len(self._ends) > 2 * KEPT_INTERVALS:
            self._halve()

    def intervals(self) -> list[Mapping[int, PhaseSums]]:
        """Return the sums by rank of each interval, oldest first, without first steps of a process.

        Ranks report by the clock, at different steps. An interval ends when all ranks have reported
        it, so that they can be compared.
        """
        expected = {rank for rank, sums in self.totals().items() if 2 * sums.steps >= self.steps}
        intervals: list[dict[int, PhaseSums]] = []
        for number, part in enumerate(self._intervals):
            if number == 0 or expected <= intervals[-1].keys():
                intervals.append({})

            for rank, sums in part.items():
                _add(intervals[-1], rank, sums)

        if len(intervals) > 1 and not expected <= intervals[-1].keys():
            for rank, sums in intervals.pop().items():
                _add(intervals[-1], rank, sums)

        return list(intervals)

    def totals(self) -> dict[int, PhaseSums]:
        """Return the sums of all intervals by rank."""
        totals: dict[int, PhaseSums] = {}
        for interval in self._intervals:
            for rank, sums in interval.items():
                _add(totals, rank, sums)

        return dict(sorted(totals.items()))

    @property
    def steps(self) -> int:
        """Maximum number of steps of a rank in the intervals."""
        return max((sums.steps for sums in self.totals().values()), default=0)

    def _halve(self) -> None:
        """Merge pairs of intervals, except the latest, which ranks may still report."""
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


@dataclass(slots=True)
class Mean:
    """Mean of numbers."""

    total: float = 0.0
    count: int = 0

    def add(self, value: float) -> None:
        """Add a number. Ignore NaN and infinities."""
        if math.isfinite(value):
            self.total += value
            self.count += 1

    @property
    def value(self) -> float:
        """Mean, or 0 without numbers."""
        if not self.count:
            return 0.0

        return self.total / self.count


@dataclass(slots=True)
class Utilization:
    """Means over all measurements."""

    gpus: dict[tuple[int, str], Mean] = field(default_factory=dict)
    """Busy percentage of each GPU by node and index."""

    def add(self, usage: Usage) -> None:
        """Add a measurement of a node."""
        for gpu, percent in (usage.gpu_percent or {}).items():
            self.gpus.setdefault((usage.node, gpu), Mean()).add(percent)

    @property
    def gpu_percent(self) -> float | None:
        """Mean over all GPUs; None without GPUs."""
        return _mean(self.gpus.values())


def _mean(means: Iterable[Mean]) -> float | None:
    values = [mean.value for mean in means if mean.count]
    if not values:
        return None

    return sum(values) / len(values)
