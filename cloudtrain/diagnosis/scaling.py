"""Scaling of a job: throughput and cost by the number of ranks, and the number to take.

Speed-up is the throughput with n ranks over that with the fewest ranks that ran; parallel
efficiency is the speed-up over the ideal one. In strong scaling the batch of a step is constant
(Amdahl 1967, doi.org/10.1145/1465482.1465560), in weak scaling the batch of each rank (Gustafson
1988, doi.org/10.1145/42411.42415).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from math import exp, log, sqrt
from random import Random
from statistics import fmean, median, variance
from typing import Any

from cloudtrain.diagnosis.slowness import Slowness

WORTH_IT = 0.7
"""Minimum efficiency of more ranks: a sample costs at most 1 / 0.7 of the base cost."""

AS_FAST = 0.05
"""Maximum relative difference of throughputs that count as equal."""

RESAMPLES = 1000
SEED = 0
"""Seed of the draws for intervals and confidence: the verdict is repeatable."""

MEDIAN_ERROR = 1.2533
"""Standard error of a median over the error of a mean: the root of half of pi."""

Rates = Mapping[int, float]
"""Samples per second over all ranks, by the number of ranks."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Measurement:
    """Measurement with one number of ranks."""

    ranks: int
    turns: tuple[tuple[float, ...], ...] = ()
    """Samples per second of each window, by turn; a turn measures each number of ranks."""
    usd_per_hour: float | None = None
    """Price of all machines; None if not billed or unknown."""
    communication: float | None = None
    """Share of a step that waits for gradients, 0 to 1; None if unknown."""
    slowness: Slowness | None = None
    """Verdict on its run by step times, if any."""
    failure: str = ""
    """Reason of a missing measurement."""
    runs: tuple[str, ...] = ()

    @property
    def logarithms(self) -> list[float]:
        """Logarithms of the median window of each turn."""
        return [log(median(turn)) for turn in self.turns]

    @property
    def rate(self) -> float:
        """Median window, as the geometric mean over the turns."""
        return exp(fmean(self.logarithms))


@dataclass(frozen=True, kw_only=True, slots=True)
class Point:
    """One number of ranks on the curve."""

    ranks: int
    samples_per_s: float
    speedup: float
    """Speed-up over the fewest ranks that ran."""
    interval: tuple[float, float]
    """Interval of the speed-up: 95 % of the draws."""
    efficiency: float
    communication: float | None
    usd_per_million: float | None
    """US dollars per million samples; None without costs or with an unknown price."""
    runs: tuple[str, ...]


class ScalingCurve:
    """Curve through measurements; at least one of them succeeded."""

    def __init__(self, measurements: Sequence[Measurement]) -> None:
        ordered = sorted(measurements, key=lambda measurement: measurement.ranks)
        self.measured = {
            measurement.ranks: measurement for measurement in ordered if measurement.turns
        }
        self.failures = {
            measurement.ranks: measurement.failure
            for measurement in ordered
            if not measurement.turns
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
    def resampled(self) -> list[dict[int, float]]:
        """Throughputs of imagined repetitions of the measurements.

        Runs of a job differ more than windows of one run. After several turns, draw by the pooled
        standard deviation of their logarithms from Student's t distribution; after one, draw its
        windows with replacement, without knowledge about other runs.
        """
        random = Random(SEED)
        freedom = sum(len(measurement.turns) - 1 for measurement in self.measured.values())
        if not freedom:
            return [
                {
                    ranks: median(random.choices(measurement.turns[0], k=len(measurement.turns[0])))
                    for ranks, measurement in self._items
                }
                for _ in range(RESAMPLES)
            ]
        deviation = self._deviation(freedom)
        samples = []
        for _ in range(RESAMPLES):
            scale = deviation / sqrt(random.gammavariate(freedom / 2, 2) / freedom)
            draws = {
                ranks: random.gauss(0, scale / sqrt(len(measurement.turns)))
                for ranks, measurement in self._items
            }
            samples.append({ranks: self.rates[ranks] * exp(draw) for ranks, draw in draws.items()})
        return samples

    @property
    def _items(self) -> list[tuple[int, Measurement]]:
        return list(self.measured.items())

    def _deviation(self, freedom: int) -> float:
        """Return the standard deviation of the logarithm between runs of the same job.

        It is at least the deviation within runs. `freedom`: number of all turns except first ones.
        """
        turns = [
            turn
            for measurement in self.measured.values()
            for turn in measurement.turns
            if len(turn) > 1
        ]
        variances = [MEDIAN_ERROR**2 * variance(map(log, turn)) / len(turn) for turn in turns]
        between = sum(
            (value - fmean(measurement.logarithms)) ** 2
            for measurement in self.measured.values()
            for value in measurement.logarithms
        )
        return sqrt(max(between / freedom, fmean(variances) if variances else 0.0))

    @cached_property
    def confidence(self) -> float:
        """Share of draws with the same number of ranks, 0 to 1."""
        best = self.best()
        return sum(self.best(rates) == best for rates in self.resampled) / RESAMPLES

    @cached_property
    def points(self) -> list[Point]:
        """Points of the curve, from the fewest ranks to the most."""
        return [self._point(measurement) for measurement in self.measured.values()]

    def _point(self, measurement: Measurement) -> Point:
        speedup = self.rates[measurement.ranks] / self.rates[self.base]
        spread = sorted(rates[measurement.ranks] / rates[self.base] for rates in self.resampled)
        cut = RESAMPLES // 40
        hourly = measurement.usd_per_hour
        return Point(
            ranks=measurement.ranks,
            samples_per_s=measurement.rate,
            speedup=speedup,
            interval=(spread[cut], spread[-1 - cut]),
            efficiency=speedup * self.base / measurement.ranks,
            communication=measurement.communication,
            usd_per_million=hourly / (measurement.rate * 3600) * 1e6 if hourly else None,
            runs=measurement.runs,
        )

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON."""
        return {
            "points": [asdict(point) for point in self.points],
            "failures": {str(ranks): why for ranks, why in self.failures.items()},
            "best": self.best(),
            "confidence": round(self.confidence, 3),
        }
