"""How busy the GPUs and the ranks of a run were, on average, as its launchers have measured it."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field

from cloudtrain_launcher.events import Usage


@dataclass(slots=True)
class Mean:
    """The mean of some numbers."""

    total: float = 0.0
    count: int = 0

    def add(self, value: float) -> None:
        """The next number; one that is not finite is left out."""
        if math.isfinite(value):
            self.total = self.total + value
            self.count = self.count + 1

    @property
    def value(self) -> float:
        """0 without numbers."""
        return self.total / self.count if self.count else 0.0


@dataclass(slots=True)
class Utilization:
    """Means over all measurements."""

    gpus: dict[tuple[int, str], Mean] = field(default_factory=dict)
    """Percent of the time in which a GPU was busy, by node and by its number there."""
    ranks: dict[str, Mean] = field(default_factory=dict)
    """Percent of one core, by rank."""
    cores: dict[int, int] = field(default_factory=dict)
    """Cores that the job may use, by node."""

    def add(self, usage: Usage) -> None:
        """The next measurement of a node."""
        for gpu, percent in (usage.gpu_percent or {}).items():
            self.gpus.setdefault((usage.node, gpu), Mean()).add(percent)
        for rank, percent in (usage.rank_cpu_percent or {}).items():
            self.ranks.setdefault(rank, Mean()).add(percent)
        if usage.cores:
            self.cores[usage.node] = usage.cores

    @property
    def gpu_percent(self) -> float | None:
        """The mean over all GPUs; None where there is no GPU."""
        return _mean(self.gpus.values())


def _mean(means: Iterable[Mean]) -> float | None:
    values = [mean.value for mean in means if mean.count]
    return sum(values) / len(values) if values else None
