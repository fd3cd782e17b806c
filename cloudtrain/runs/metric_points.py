"""Reports of metrics of a run: every point."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from cloudtrain.runs.state import SeenEvents
from cloudtrain_wire.events import Event, Metrics


@dataclass(frozen=True, slots=True)
class MetricPoint:
    """Metrics of one report."""

    time: float
    """Unix timestamp, by the clock of the machine that reported it."""
    step: float | None
    epoch: float | None
    values: Mapping[str, float]
    """Values by name, which may be NaN or infinite."""

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON."""
        return {
            "time": self.time,
            "step": self.step,
            "epoch": self.epoch,
            "values": dict(self.values),
        }


def metric_points(
    events: Iterable[Event], seen_events: SeenEvents | None = None
) -> list[MetricPoint]:
    """Return every report of metrics in order. One that was read twice counts once.

    `seen_events`: those of earlier calls.
    """
    if seen_events is None:
        seen_events = SeenEvents()

    result = []
    for event in events:
        if isinstance(event, Metrics) and (
            event.seq is None or seen_events.add(event.node, event.rank, event.seq)
        ):
            result.append(MetricPoint(event.time, event.step, event.epoch, event.values))

    return result
