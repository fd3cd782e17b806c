"""Series of a metric: its first, last, lowest, highest and best value."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

_LOWER_IS_BETTER = re.compile(
    r"(^|[_/."
    r" -])(loss|err|error|errors|perplexity|ppl|mae|mse|rmse|wer|cer|fid|latency|seconds|regret)($|[_/. -])"
)
_HIGHER_IS_BETTER = re.compile(
    r"(^|[_/."
    r" -])(acc|accuracy|auc|f1|precision|recall|iou|miou|map|bleu|rouge|reward|return|score|top[0-9]+|r2)"
    r"($|[_/. -])"
)


def direction_of(metric: str) -> int:
    """Return -1 if a lower value is better, 1 for a higher one, 0 if the name does not tell."""
    if _LOWER_IS_BETTER.search(metric.lower()):
        return -1
    if _HIGHER_IS_BETTER.search(metric.lower()):
        return 1

    return 0


@dataclass(slots=True)
class Series:
    """First, last, lowest and highest value of a metric, each as (value, step)."""

    name: str
    first: tuple[float, float | None]
    last: tuple[float, float | None]
    low: tuple[float, float | None]
    high: tuple[float, float | None]

    @classmethod
    def begin(cls, name: str, value: float, step: float | None) -> Series:
        """Return the series of a metric with its first value."""
        at = (value, step)
        return cls(name, at, at, at, at)

    @property
    def best(self) -> tuple[float, float | None] | None:
        """Best value and its step; None if the name does not tell which direction is better."""
        direction = direction_of(self.name)
        if not direction:
            return None

        return self.low if direction < 0 else self.high

    def add(self, value: float, step: float | None) -> None:
        """Add a value. NaN is never the best one."""
        self.last = (value, step)
        if math.isnan(value):
            return
        if not value >= self.low[0]:  # it may be NaN
            self.low = (value, step)
        if not value <= self.high[0]:
            self.high = (value, step)
