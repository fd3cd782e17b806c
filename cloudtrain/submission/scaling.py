"""Scaling of a job: short runs with different numbers of ranks, their curve, and the number to take.

    plans = scaled_plans(make, base, (1, 2, 4))

`make` makes the plan of the job with overrides; `base` is the plan without any. Speed-up is the
throughput with n ranks over that with the fewest ranks that ran; parallel efficiency is the speed-up
over the ideal one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from statistics import median
from typing import Any

from cloudtrain.errors import RefusedError, UsageError
from cloudtrain.planning.plan import Plan, TrialRules
from cloudtrain.runs.state import RunState, explain
from cloudtrain.submission.preflight import preflight, raise_errors
from cloudtrain.submission.run import Run
from cloudtrain_launcher.host import available_cores
from cloudtrain_launcher.packages.bounded_files import read_regular_text

METRIC = "samples_per_s"
"""Metric of the throughput over all ranks."""

WARM_UP_REPORTS = 2
REPORTS = 10
"""Number of first reports to skip, and of the report that ends a run."""

THREADS = "OMP_NUM_THREADS"
"""Variable with the number of threads of torch and its libraries."""

MAX_SECONDS = 1800
"""Maximum seconds of a measuring run, unless the job has a shorter limit."""

MakePlan = Callable[[Sequence[str]], Plan]
"""Function from overrides, `KEY=VALUE`, to a plan with a new run id."""


def check_reports(base: Plan, earlier: Run | None) -> None:
    """Raise UsageError for a user's program that apparently does not report its throughput."""
    if base.spec.entrypoint is None or METRIC in base.spec.metrics:
        return
    if earlier is not None and any(METRIC in point.values for point in earlier.metrics()):
        return

    path = Path(base.context.source.root, base.spec.entrypoint)
    try:
        if path.suffix != ".py" or METRIC in read_regular_text(path, errors="replace"):
            return
    except OSError:
        return

    hint = (
        "two lines report it: from cloudtrain_job import log_metrics; "
        f"log_metrics(step=step, {METRIC}=samples_of_all_ranks / seconds) every few steps"
    )
    raise UsageError(
        f"{base.spec.entrypoint} does not report {METRIC}, the measure of the comparison", hint=hint
    )


def scaled_plans(make: MakePlan, base: Plan, sizes: Sequence[int]) -> dict[int, Plan]:
    """Return a checked plan for each number of ranks. Raise UsageError or RefusedError."""
    plans = {}
    for ranks in sizes:
        try:
            plan = scaled_plan(make, base, ranks, most=max(sizes))
            raise_errors(preflight(plan))
        except (UsageError, RefusedError) as error:
            raise type(error)(f"with {ranks} ranks: {error.render()}") from None

        plans[ranks] = plan

    return plans


def scaled_plan(make: MakePlan, base: Plan, ranks: int, *, most: int) -> Plan:
    """Return the plan of a run that measures the job with `ranks`. May raise UsageError.

    `most`: the largest number of ranks on the curve.
    """
    overrides = [*_resources(base, ranks), "limits.restarts=0"]
    longest = base.spec.limits.max_runtime
    if longest is None or longest > MAX_SECONDS:
        overrides.append(f"limits.max_runtime={MAX_SECONDS} s")
    if base.spec.checkpoints.uri:
        overrides.append("checkpoints.uri=null")
    if (threads := threads_each(base, most)) is not None:
        overrides.append(f"env.{THREADS}={threads}")

    plan = make(overrides)
    rules = TrialRules(
        trial=0,
        metric=METRIC,
        goal="maximize",
        rungs=(),
        eta=2,
        until=REPORTS,
        measures=True,
    )

    return replace(plan, context=replace(plan.context, trial=rules))


def _resources(base: Plan, ranks: int) -> list[str]:
    """Return the overrides of nodes and processes. A job of one node stays on one node."""
    nodes = base.spec.resources.nodes
    per_node = base.processes
    if nodes == 1 or ranks <= per_node:
        nodes = 1
        per_node = ranks
    elif ranks % per_node:
        hint = f"numbers up to {per_node}, and whole multiples of it"
        raise UsageError(
            f"the job has {per_node} on a node, which is no whole number of nodes", hint=hint
        )
    else:
        nodes = ranks // per_node

    gpus = [f"resources.gpus={per_node}"] if base.gpus else []
    return [f"resources.nodes={nodes}", f"resources.processes={per_node}", *gpus]


def threads_each(base: Plan, most: int) -> int | None:
    """Return threads per rank: this machine's cores divided by the most ranks.

    Return None if ranks have GPUs or other machines, or if the job sets it. By default fewer ranks
    have more threads each, which would make the curve unfair.
    """
    cores = cores_shared(base)
    return None if cores is None or THREADS in base.spec.env else max(1, cores // most)


def cores_shared(plan: Plan) -> int | None:
    """Return the cores that the ranks share on this machine; None with GPUs or other machines."""
    if plan.gpus or plan.host.declaration.is_remote:
        return None
    return available_cores()


def measurement_of(
    run: Run, state: RunState, ranks: int, usd_per_hour: float | None
) -> Measurement:
    """Return the measurement of one run, or the reason for a missing one."""
    measurement = Measurement(ranks=ranks, usd_per_hour=usd_per_hour, run=run.id)
    if rates := _reported_rates(run):
        return replace(
            measurement,
            windows=rates,
            communication=_communication(state),
        )

    is_silent = state.state == "succeeded"
    return replace(measurement, failure=f"it reported no {METRIC}" if is_silent else explain(state))


def _reported_rates(run: Run) -> tuple[float, ...]:
    """Return the reported throughputs without the first ones."""
    values = [value for point in run.metrics() if (value := point.values.get(METRIC)) is not None]
    counted = values[WARM_UP_REPORTS:] if len(values) > WARM_UP_REPORTS else []
    return tuple(value for value in counted if math.isfinite(value) and value > 0)


def _communication(state: RunState) -> float | None:
    """Return the mean share of communication over the ranks, or None without step times."""
    totals = state.step_times.totals().values()
    shares = [sums.share("communication") for sums in totals if "communication" in sums.seconds]
    return sum(shares) / len(shares) if shares else None


WORTH_IT = 0.7
"""Minimum efficiency of more ranks: a sample costs at most 1 / 0.7 of the base cost."""

AS_FAST = 0.05
"""Maximum relative difference of throughputs that count as equal."""

WELL = 0.8
"""Least efficiency that counts as good scaling."""


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

    def best(self) -> int:
        """Return the fewest ranks that are as fast as the fastest that are worth it."""
        rates = self.rates
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
        }


def verdict(curve: ScalingCurve, unit: str) -> str:
    """Return the verdict as a sentence without its full stop. `unit`: GPU or process."""
    if len(curve.measured) < 2:
        return f"only {_ranks(curve.base, unit)} could be measured: there is nothing to compare"

    best = curve.best()
    most = max(curve.measured)
    more = {ranks: rate for ranks, rate in curve.rates.items() if ranks > best}
    point = next(point for point in curve.points if point.ranks == best)

    if best == curve.base:
        fastest = max(more, key=lambda ranks: more[ranks])
        return f"use {_ranks(best, unit)}: {_not_worth_it(curve, fastest, best, unit)}"

    against = f"{point.speedup:.1f} times as fast as {curve.base}"
    if best == most:
        if curve.is_priced:
            cost = curve.sample_cost_ratio(best, curve.base)
            return (
                f"{_ranks(best, unit)} are best: {against}, at {cost:.1f} times the cost of a"
                " sample"
            )

        return (
            f"scales{' well' if point.efficiency >= WELL else ''} to {_ranks(best, unit)}:"
            f" {_efficiency(point)}"
        )

    fastest = max(more, key=lambda ranks: more[ranks])
    not_more = _not_worth_it(curve, fastest, best, unit)
    return f"{_ranks(best, unit)} are best: {against}, {_efficiency(point)}; {not_more}"


def _efficiency(point: Point) -> str:
    return f"efficiency {point.efficiency:.2f}"


def _not_worth_it(curve: ScalingCurve, ranks: int, against: int, unit: str) -> str:
    """Return why more ranks than `against` are not worth it."""
    cost = curve.sample_cost_ratio(ranks, against)
    speed = curve.rates[ranks] / curve.rates[against]
    if speed < 1 - AS_FAST:
        return f"{ranks} are slower, {speed:.2f} times as fast"

    costs = (
        f"cost {cost:.1f} times as much"
        if curve.is_priced
        else f"take {cost:.1f} times the {unit} time"
    )
    fast = "no faster" if speed < 1 + AS_FAST else f"only {speed:.1f} times as fast"
    return f"{ranks} {costs} per sample and are {fast}"


def _ranks(count: int, unit: str) -> str:
    plural = "es" if unit.endswith("s") else "s"
    return f"{count} {unit}{plural if count > 1 else ''}"
