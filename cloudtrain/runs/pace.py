"""How fast a run goes from step to step, by the times at which it has reported its steps."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

SPACING_SECONDS = 1.0
"""Reports that follow each other faster count as one."""

WINDOW = 64
"""The pace is that of the latest so many reports."""


@dataclass(slots=True)
class Pace:
    """The latest reported steps, each with its Unix timestamp."""

    points: deque[tuple[float, float]] = field(default_factory=lambda: deque(maxlen=WINDOW))

    def add(self, time: float, step: float | None) -> None:
        """A step was reported. A step before the latest one begins anew."""
        if step is None:
            return
        if self.points and (step < self.points[-1][1] or time < self.points[-1][0]):
            self.restart()
        if len(self.points) > 1 and self.points[-1][0] - self.points[-2][0] < SPACING_SECONDS:
            self.points.pop()
        self.points.append((time, step))

    def restart(self) -> None:
        """Training begins anew, or again: what was before says nothing about it."""
        self.points.clear()

    @property
    def latest_time(self) -> float:
        """When the latest step was reported; 0 before the first."""
        return self.points[-1][0] if self.points else 0.0

    @property
    def seconds_per_step(self) -> float | None:
        """Seconds from step to step; None before two different steps were reported."""
        if len(self.points) < 2:
            return None
        (begin, first), (end, last) = self.points[0], self.points[-1]
        return (end - begin) / (last - first) if last > first and end > begin else None
