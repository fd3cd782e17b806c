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

SCALES = 12, 6, 3
"""Numbers of parts of similar length whose paces are compared.

A machine that is slow for minutes shows in few long parts; steps that vary show in many short ones.
"""

USUAL_SPREAD = 0.08
USUAL_PARTS = 3
"""Prior of the relative spread of paces, and its weight in parts."""

FLOOR = 0.08
"""Minimum relative error of the remaining pace, because a machine's speed varies."""

WIDTH = 3.5
"""Half width of the interval in standard errors of the mean, with room for later steps."""

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
    longest: float = 0.0
    shortest: float = 0.0
    steps: float = 0.0
    """Steps trained from the first report to the last pause; repeated steps count again."""

    def add(self, seconds: float, steps: float) -> None:
        """Add a pause."""
        self.shortest = min(self.shortest, seconds) if self.count else seconds
        self.count += 1
        self.seconds += seconds
        self.steps = steps
        self.longest = max(self.longest, seconds)

    @property
    def mean(self) -> float:
        """Mean seconds of a pause."""
        return self.seconds / self.count if self.count else 0.0


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
        steps, seconds = (0.0, 0.0) if self.laps else (self.trained, self.warm_up)
        for lap in reversed(self.laps):
            steps += lap.steps
            seconds += lap.seconds
            if seconds >= RECENT_SECONDS:
                break

        return seconds / steps if steps and seconds else None

    def leads_to(self, step: float | None) -> bool:
        """Return whether a step is at most one lap after the last."""
        stride = self.laps[-1].steps if self.laps else 1.0
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


def pace_of(laps: Sequence[Lap]) -> tuple[float, float]:
    """Return the seconds per step, and the relative error for the remaining steps."""
    steady = _steady(laps)
    seconds = sum(lap.seconds for lap in steady)
    steps = sum(lap.steps for lap in steady)
    mean = seconds / steps

    return mean, math.hypot(
        FLOOR, WIDTH * max(_standard_error(steady, seconds / parts, mean) for parts in SCALES)
    )


def _steady(laps: Sequence[Lap]) -> list[Lap]:
    """Return the laps without the slow first ones."""
    usual = median(lap.seconds / lap.steps for lap in laps)
    return list(dropwhile(lambda lap: lap.seconds / lap.steps > STILL_WARM_UP * usual, laps))


def _standard_error(laps: Sequence[Lap], seconds: float, mean: float) -> float:
    """Return the relative standard error of the mean pace, by parts of at least these seconds."""
    parts = _put_together(laps, seconds)
    steps = sum(part.steps for part in parts)
    squares = (
        sum(part.steps * (part.seconds / part.steps / mean - 1) ** 2 for part in parts)
        / steps
        * len(parts)
    )
    variance = (squares + USUAL_PARTS * USUAL_SPREAD**2) / (len(parts) - 1 + USUAL_PARTS)

    return math.sqrt(variance / len(parts))


def _put_together(laps: Sequence[Lap], seconds: float) -> list[Lap]:
    """Return the laps with neighbours merged up to these seconds."""
    merged: list[Lap] = []
    for lap in laps:
        if merged and merged[-1].seconds < seconds:
            last = merged.pop()
            lap = Lap(lap.end, last.steps + lap.steps, last.seconds + lap.seconds)

        merged.append(lap)

    return merged
