"""Which runs of a list are wanted, and their order by a metric."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from cloudtrain.errors import UsageError, did_you_mean

_VALIDATION = ("val", "eval", "test")
"""Beginnings of metrics that judge a model."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RunFilter:
    """Conditions that a listed run meets; the default is met by all."""

    name: str = "*"
    """Name of its job, or a pattern such as `digits*`."""
    since: float = 0.0
    """Unix timestamp; it was submitted later."""
    tags: Sequence[str] = ()
    """Tags of its job: `team`, or `team=vision`. All of them are wanted."""

    def fits(self, run: Mapping[str, Any]) -> bool:
        """Return whether a summary of `list_runs` meets all conditions."""
        if run["created"] < self.since or not fnmatchcase(run["name"], self.name):
            return False

        for tag in self.tags:
            name, equals, value = tag.partition("=")
            if name not in run["tags"] or (equals and run["tags"][name] != value):
                return False

        return True


def metric_of(run: Mapping[str, Any]) -> str:
    """Return the metric that judges a run best: of validation, if it has one; empty for none."""
    names: list[str] = [*(run["best"] or run["metrics"])]
    for name in names:
        if name.startswith(_VALIDATION):
            return name

    return names[0] if names else ""


def value_of(run: Mapping[str, Any], metric: str) -> float | None:
    """Return a run's best value of a metric, or the last one if the name tells no direction."""
    value: float | None = run["best"].get(metric, run["metrics"].get(metric))
    return value


def best_first(runs: Sequence[dict[str, Any]], metric: str) -> list[dict[str, Any]]:
    """Return summaries of `list_runs` by a metric, the best first, those without it last.

    If the name does not tell whether a low value is better, the highest is first. Raise UsageError
    if no run has reported the metric.
    """
    reported = {name for run in runs for name in run["metrics"]}
    if metric not in reported:
        message = f"none of these runs has reported {metric!r}{did_you_mean(metric, reported)}"
        raise UsageError(message, hint="cloudtrain metrics RUN shows what a run has reported")

    from cloudtrain.runs.series import direction_of  # a list without --sort needs no directions

    sign = direction_of(metric) or 1

    def order(run: Mapping[str, Any]) -> tuple[bool, float]:
        value = value_of(run, metric)
        return value is None, -sign * (value or 0.0)

    return sorted(runs, key=order)
