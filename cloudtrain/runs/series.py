"""Metrics of a run as series: all points and the best value of each metric."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from cloudtrain.runs.state import SeenEvents
from cloudtrain_wire.events import Event, Metrics

_LOWER_IS_BETTER = re.compile(
    r"(^|[_/."
    r" -])(loss|err|error|errors|perplexity|ppl|mae|mse|rmse|wer|cer|fid|latency|seconds|regret)($|[_/. -])"
)
_HIGHER_IS_BETTER = re.compile(
    r"(^|[_/."
    r" -])(acc|accuracy|auc|f1|precision|recall|iou|miou|map|bleu|rouge|reward|return|score|top[0-9]+|r2)"
    r"($|[_/. -])"
)


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


def metric_points(events: Iterable[Event]) -> list[MetricPoint]:
    """Return every report of metrics in order. One that was read twice counts once."""
    seen_events = SeenEvents()
    result = []
    for event in events:
        if isinstance(event, Metrics) and (
            event.seq is None or seen_events.add(event.node, event.rank, event.seq)
        ):
            result.append(MetricPoint(event.time, event.step, event.epoch, event.values))

    return result


@dataclass(slots=True)
class Series:
    """First, last, lowest and highest value of a metric, each as (value, step)."""

    name: str
    first: tuple[float, float | None]
    last: tuple[float, float | None]
    low: tuple[float, float | None]
    high: tuple[float, float | None]

    @property
    def best(self) -> tuple[float, float | None] | None:
        """Best value and its step; None if the name does not tell which direction is better."""
        if _LOWER_IS_BETTER.search(self.name.lower()):
            return self.low
        if _HIGHER_IS_BETTER.search(self.name.lower()):
            return self.high

        return None

    def _add(self, value: float, step: float | None) -> None:
        self.last = (value, step)
        if math.isnan(value):
            return
        if not value >= self.low[0]:  # it may be NaN
            self.low = (value, step)
        if not value <= self.high[0]:
            self.high = (value, step)


def series_of(points: Iterable[MetricPoint]) -> dict[str, Series]:
    """Return metrics by name, in order of their first report. NaN is never the best value."""
    result: dict[str, Series] = {}
    for point in points:
        for name, value in point.values.items():
            at = (value, point.step)
            series = result.get(name)
            if series is None or math.isnan(series.low[0]):
                result[name] = Series(name, series.first if series else at, at, at, at)
            else:
                series._add(value, point.step)

    return result
