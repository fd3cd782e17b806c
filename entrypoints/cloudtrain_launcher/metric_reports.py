"""Counts the reports of one metric: which of a run's metric events is its first, second, third.
Standard library only.

Job and client count by the same rule, so that both mean the same report by a rung.
"""

from __future__ import annotations

from cloudtrain_launcher.events import Metrics


class MetricReports:
    """The reports of a trial. After a restart a program may report again what it had reported: that
    counts once.
    """

    def __init__(self, metric: str, count: int = 0, position: float | None = None) -> None:
        """`count`, `position`: where earlier runs of the trial had got to, if this one goes on from
        them.
        """
        self.metric = metric
        self.count = count
        """How many reports there were so far."""
        self.position = position
        """The step of the latest report, or its epoch if it has no step; None if it has neither."""

    def add(self, event: Metrics) -> float | None:
        """The value, if the event is the next report; `count` is its number then. None: it is no
        new report.
        """
        value = event.values.get(self.metric)
        if value is None:
            return None
        position = event.epoch if event.step is None else event.step
        if position is not None and self.position is not None and position <= self.position:
            return None
        self.count += 1
        self.position = position
        return value
