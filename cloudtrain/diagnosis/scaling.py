"""Scaling of a job: throughput and cost by the number of ranks, and the number to take.

Speed-up is the throughput with n ranks over that with the fewest ranks that ran; parallel
efficiency is the speed-up over the ideal one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from statistics import median
from typing import Any

from cloudtrain.diagnosis.slowness import Setup, Slowness, change_for

WORTH_IT = 0.7
"""Minimum efficiency of more ranks: a sample costs at most 1 / 0.7 of the base cost."""

AS_FAST = 0.05
"""Maximum relative difference of throughputs that count as equal."""

WELL = 0.8
"""Least efficiency that counts as good scaling."""

Rates = Mapping[int, float]
"""Samples per second over all ranks, by the number of ranks."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Measurement:
    """Measurement with one number of ranks."""

    ranks: int
    windows: tuple[float, ...] = ()
    """Samples per second of each window; empty if it failed."""
    usd_per_hour: float | None = None
    """Price of all machines; None if not billed or unknown."""
    communication: float | None = None
    """Share of a step that waits for gradients, 0 to 1; None if unknown."""
    slowness: Slowness | None = None
    """Verdict on its run by step times, if any."""
    failure: str = ""
    """Reason of a missing measurement."""
    run: str = ""
    """Id of its run."""

    @property
    def rate(self) -> float:
        """Throughput of the median window."""
        return median(self.windows)


@dataclass(frozen=True, kw_only=True, slots=True)
class Point:
    """One number of ranks on the curve."""

    ranks: int
    samples_per_s: float
    speedup: float
    """Speed-up over the fewest ranks that ran."""
    efficiency: float
    communication: float | None
    usd_per_million: float | None
    """US dollars per million samples; None without costs or with an unknown price."""
    run: str


class ScalingCurve:
    """Curve through measurements; at least one of them succeeded."""

    def __init__(self, measurements: Sequence[Measurement]) -> None:
        ordered = sorted(measurements, key=lambda measurement: measurement.ranks)
        self.measured = {
            measurement.ranks: measurement for measurement in ordered if measurement.windows
        }
        self.failures = {
            measurement.ranks: measurement.failure
            for measurement in ordered
            if not measurement.windows
        }
        self.base = min(self.measured)
        """Fewest ranks that ran, the base of comparison."""

    @cached_property
    def rates(self) -> dict[int, float]:
        """Throughput by number of ranks."""
        return {ranks: measurement.rate for ranks, measurement in self.measured.items()}

    @property
    def is_priced(self) -> bool:
        """True if the price of every number of ranks is known."""
        return all(measurement.usd_per_hour for measurement in self.measured.values())

    def price_ratio(self, ranks: int, against: int) -> float:
        """Return the ratio of the prices; without prices, of the numbers of ranks."""
        if not self.is_priced:
            return ranks / against
        return (self.measured[ranks].usd_per_hour or 1.0) / (
            self.measured[against].usd_per_hour or 1.0
        )

    def sample_cost_ratio(self, ranks: int, against: int) -> float:
        """Return the ratio of the costs of a sample."""
        return self.price_ratio(ranks, against) * self.rates[against] / self.rates[ranks]

    def best(self, rates: Rates | None = None) -> int:
        """Return the fewest ranks that are as fast as the fastest that are worth it."""
        rates = rates or self.rates
        base = rates[self.base]
        worthy = {
            n: rate
            for n, rate in rates.items()
            if rate / base >= WORTH_IT * self.price_ratio(n, self.base)
        }
        fastest = max(
            rate for n, rate in worthy.items() if n == self.base or rate >= (1 + AS_FAST) * base
        )
        return min(n for n, rate in worthy.items() if rate >= (1 - AS_FAST) * fastest)

    @cached_property
    def is_clear(self) -> bool:
        """True if slow windows of some runs and fast ones of others lead to the same verdict."""
        low = {ranks: _quarter(one.windows, fastest=False) for ranks, one in self.measured.items()}
        high = {ranks: _quarter(one.windows, fastest=True) for ranks, one in self.measured.items()}
        mixed = ({**high, self.base: low[self.base]}, {**low, self.base: high[self.base]})
        return all(self.best(rates) == self.best() for rates in mixed)

    @cached_property
    def points(self) -> list[Point]:
        """Points of the curve, from the fewest ranks to the most."""
        return [self._point(measurement) for measurement in self.measured.values()]

    def _point(self, measurement: Measurement) -> Point:
        speedup = self.rates[measurement.ranks] / self.rates[self.base]
        hourly = measurement.usd_per_hour
        return Point(
            ranks=measurement.ranks,
            samples_per_s=measurement.rate,
            speedup=speedup,
            efficiency=speedup * self.base / measurement.ranks,
            communication=measurement.communication,
            usd_per_million=hourly / (measurement.rate * 3600) * 1e6 if hourly else None,
            run=measurement.run,
        )

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON."""
        return {
            "points": [asdict(point) for point in self.points],
            "failures": {str(ranks): why for ranks, why in self.failures.items()},
            "best": self.best(),
            "clear": self.is_clear,
        }


def _quarter(windows: Sequence[float], *, fastest: bool) -> float:
    """Return the throughput that the slowest or the fastest quarter of the windows reaches."""
    cut = len(windows) // 4
    return sorted(windows)[-1 - cut if fastest else cut]


def verdict(curve: ScalingCurve, setup: Setup) -> str:
    """Return the verdict as a sentence without its full stop."""
    if len(curve.measured) < 2:
        return f"only {_ranks(curve.base, setup)} could be measured: there is nothing to compare"
    text = _verdict(curve, setup)
    if curve.is_clear:
        return text
    return f"not clear, the measurements differ too much; most likely: {text}"


def _verdict(curve: ScalingCurve, setup: Setup) -> str:
    best = curve.best()
    most = max(curve.measured)
    more = {ranks: rate for ranks, rate in curve.rates.items() if ranks > best}
    point = next(point for point in curve.points if point.ranks == best)
    if best == curve.base:
        fastest = max(more, key=lambda ranks: more[ranks])
        return f"use {_ranks(best, setup)}: {_not_worth_it(curve, fastest, best, setup)}"
    against = f"{point.speedup:.1f} times as fast as {curve.base}"
    if best == most:
        if curve.is_priced:
            cost = curve.sample_cost_ratio(best, curve.base)
            return (
                f"{_ranks(best, setup)} are best: {against}, at {cost:.1f} times the cost of a"
                " sample"
            )
        return (
            f"scales{' well' if point.efficiency >= WELL else ''} to {_ranks(best, setup)}:"
            f" {_efficiency(point)}"
        )
    fastest = max(more, key=lambda ranks: more[ranks])
    not_more = _not_worth_it(curve, fastest, best, setup)
    return f"{_ranks(best, setup)} are best: {against}, {_efficiency(point)}; {not_more}"


def _efficiency(point: Point) -> str:
    return f"efficiency {point.efficiency:.2f}"


def _not_worth_it(curve: ScalingCurve, ranks: int, against: int, setup: Setup) -> str:
    """Return why more ranks than `against` are not worth it."""
    cost = curve.sample_cost_ratio(ranks, against)
    speed = curve.rates[ranks] / curve.rates[against]
    if speed < 1 - AS_FAST:
        return f"{ranks} are slower, {speed:.2f} times as fast"
    unit = "GPU" if setup.has_gpus else "process"
    costs = (
        f"cost {cost:.1f} times as much"
        if curve.is_priced
        else f"take {cost:.1f} times the {unit} time"
    )
    fast = "no faster" if speed < 1 + AS_FAST else f"only {speed:.1f} times as fast"
    return f"{ranks} {costs} per sample and are {fast}"


def what_to_try(curve: ScalingCurve, setup: Setup) -> str:
    """Return what to change if the most ranks are not worth it; else empty."""
    most = max(curve.measured)
    if len(curve.measured) < 2:
        return ""
    if not curve.is_clear:
        return "measure again, while nothing else runs on the machine"
    if curve.best() == most:
        return ""
    measured = curve.measured[most]
    slowness = measured.slowness
    if slowness is not None and slowness.is_slow:
        return slowness.change
    if slowness is not None and slowness.cause == "compute":
        messages = measured.communication or 0.0
        return change_for("too-small", messages, replace(setup, ranks=most), None, "compute")
    return f"cloudtrain diagnose {measured.run}: why it is slow"


def _ranks(count: int, setup: Setup) -> str:
    word, several = ("GPU", "GPUs") if setup.has_gpus else ("process", "processes")
    return f"{count} {word if count == 1 else several}"
