"""Training speed of a run: laps between reports of steps, and pauses.

A lap contains only training. Other activities of the first rank, such as `evaluating` and `saving`,
are pauses. The first steps of a process (memory allocation, kernel selection, compilation) are
warm-up.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import dropwhile
from statistics import median

WARM_UP_STEPS = 2
"""Laps that begin within these first steps of a process are not typical."""

KEPT_LAPS = 128
"""Minimum number of laps to keep; at twice as many, pairs are merged."""

RECENT_SECONDS = 60.0
"""Duration of the latest laps that give the current speed."""

STILL_WARM_UP = 2.0
"""First laps count as warm-up while they are this many times slower than the median lap."""


@dataclass(frozen=True, slots=True)
class Lap:
    """Consecutive steps."""

    end: float
    """Last step."""
    steps: float
    seconds: float
    """Seconds without pauses."""


@dataclass(slots=True)
class Pauses:
    """All pauses of one kind."""

    count: int = 0
    seconds: float = 0.0
    """Sum of all pauses."""
    steps: float = 0.0
    """Steps trained from the first report to the last pause; repeated steps count again."""

    def add(self, seconds: float, steps: float) -> None:
        """Add a pause."""
        self.count += 1
        self.seconds += seconds
        self.steps = steps

    @property
    def mean(self) -> float:
        """Mean seconds of a pause."""
        if not self.count:
            return 0.0

        return self.seconds / self.count


@dataclass(slots=True)
class Laps:
    """Laps and pauses of a run, from the reports of its first rank, in bounded memory."""

    laps: list[Lap] = field(default_factory=list)
    """Laps without warm-up, oldest first."""
    pauses: dict[str, Pauses] = field(default_factory=dict)
    """Pauses by activity."""
    warm_up: float = 0.0
    """Seconds of the first steps of each process, if they were reported one by one."""
    first: float = 0.0
    """Time of the first reported step as a Unix timestamp; 0: none yet."""
    time: float = 0.0
    """Time of the last reported step."""
    step: float = 0.0
    """Last reported step."""
    trained: float = 0.0
    """Steps between reports, of all processes."""
    paused: float = 0.0
    """Seconds of pauses since then that are over."""
    _reported: bool = False
    """True if the current process has reported a step."""
    _begin: float = 0.0
    """First step of the current process, from its checkpoint or 0."""
    _pause: tuple[str, float] | None = None
    """Current pause: its activity and start."""

    def reported(self, time: float, step: float | None) -> None:
        """Add a reported step. An earlier step than the last starts anew."""
        if step is None or not math.isfinite(step):
            return
        if self._reported and (step < self.step or time < self.time):
            self.restart()

        if not self._reported:
            self._reported = True
            self.first = self.first or time
        elif step == self.step:
            return  # said twice: the time belongs to the steps that follow
        else:
            self._lap(time, step)

        self.time = time
        self.step = step
        self.paused = 0.0

    def pausing(self, time: float, activity: str) -> None:
        """Start a pause of the first rank; an empty activity ends it."""
        if self._pause is not None:
            name, since = self._pause
            self._pause = None

            if self._reported and time >= since:
                self.paused += time - since
                self.pauses.setdefault(name, Pauses()).add(time - since, self.trained)

        if activity:
            self._pause = activity, time

    def restart(self, step: float = 0.0) -> None:
        """Start a new process at a checkpoint's step, and keep the laps."""
        self._reported = False
        self._begin = step
        self._pause = None
        self.paused = 0.0

    @property
    def steps(self) -> float:
        """Number of steps in the laps."""
        return sum(lap.steps for lap in self.laps)

    @property
    def seconds(self) -> float:
        """Seconds of the laps."""
        return sum(lap.seconds for lap in self.laps)

    @property
    def seconds_per_step(self) -> float | None:
        """Current seconds per step, from warm-up if necessary; None before two steps."""
        steps = 0.0
        seconds = 0.0
        if not self.laps:
            steps = self.trained
            seconds = self.warm_up

        for lap in reversed(self.laps):
            steps += lap.steps
            seconds += lap.seconds
            if seconds >= RECENT_SECONDS:
                break

        if steps and seconds:
            return seconds / steps

        return None

    def leads_to(self, step: float | None) -> bool:
        """Return whether a step is at most one lap after the last."""
        if self.laps:
            stride = self.laps[-1].steps
        else:
            stride = 1.0

        return step is not None and 0 <= step - self.step <= stride

    def forgotten(self) -> Laps:
        """Return empty laps, because earlier reports counted something else."""
        return Laps(_begin=self._begin, _pause=self._pause)

    def _lap(self, time: float, step: float) -> None:
        steps = step - self.step
        seconds = max(0.0, time - self.time - self.paused)
        self.trained += steps

        if self.step - self._begin < WARM_UP_STEPS:
            self.warm_up += seconds
            return

        self.laps.append(Lap(step, steps, seconds))
        if len(self.laps) >= 2 * KEPT_LAPS:
            pairs = zip(self.laps[::2], self.laps[1::2], strict=True)
            self.laps = [Lap(b.end, a.steps + b.steps, a.seconds + b.seconds) for a, b in pairs]


def pace_of(laps: Sequence[Lap]) -> float:
    """Return the seconds per step, without the slow first laps."""
    usual = median(lap.seconds / lap.steps for lap in laps)
    steady = list(dropwhile(lambda lap: lap.seconds / lap.steps > STILL_WARM_UP * usual, laps))
    return sum(lap.seconds for lap in steady) / sum(lap.steps for lap in steady)
