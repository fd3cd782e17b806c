"""Numbering of a metric's reports among a run's metric events. Standard library only.

Job and client share this rule, so that a rung means the same report to both.
"""

from __future__ import annotations

from cloudtrain_launcher.events import Metrics


class MetricReports:
    """Reports of a trial. A report that a program repeats after a restart counts once."""

    def __init__(self, metric: str, count: int = 0, position: float | None = None) -> None:
        """Start at the `count` and `position` of the trial's earlier runs."""
        self.metric = metric
        self.count = count
        """Return the number of counted reports."""
        self.position = position
        """Return the step of the latest report, or its epoch without a step, or None."""

    def add(self, event: Metrics) -> float | None:
        """Return the value if the event is the next report, number `count`; else None."""
        value = event.values.get(self.metric)
        if value is None:
            return None
        position = event.epoch if event.step is None else event.step
        if position is not None and self.position is not None and position <= self.position:
            return None
        self.count += 1
        self.position = position
        return value
