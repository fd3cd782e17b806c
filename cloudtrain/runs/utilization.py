"""Mean utilization of a run's GPUs, measured by its launchers."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field

from cloudtrain_launcher.events import Usage


@dataclass(slots=True)
class Mean:
    """Mean of numbers."""

    total: float = 0.0
    count: int = 0

    def add(self, value: float) -> None:
        """Add a number. Ignore NaN and infinities."""
        if math.isfinite(value):
            self.total = self.total + value
            self.count = self.count + 1

    @property
    def value(self) -> float:
        """Mean, or 0 without numbers."""
        return self.total / self.count if self.count else 0.0


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
    return sum(values) / len(values) if values else None
