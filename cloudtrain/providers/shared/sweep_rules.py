"""Parts of a `sweep` section and its budget that no cloud's service can express. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from cloudtrain.catalog.pricing import OWN_TABLE_HINT
from cloudtrain.errors import Issue
from cloudtrain.planning.cost import PRICE_UNKNOWN
from cloudtrain.planning.plan import Plan
from cloudtrain.planning.tuned import argument_of, sweep_of
from cloudtrain.spec.search_space import Integers
from cloudtrain.units import exact_duration

PORTABLE = "engine: portable runs it from this machine, with the same section"
"""Next step for a section that a service cannot carry out."""


def worst_usd(plan: Plan) -> float | None:
    """Return the maximum cost of all trials together; None if the price is unknown.

    A trial costs at most its own cap; at most `parallel` trials run during the maximum time of the
    sweep.
    """
    sweep = sweep_of(plan)
    estimate = plan.target.cost_estimate
    if estimate is None or estimate.worst_usd is None or estimate.usd_per_hour is None:
        return None

    all_trials = sweep.trial_count * estimate.worst_usd
    if sweep.budget.max_time is None or estimate.kept_seconds:
        return all_trials

    hours = (sweep.budget.max_time + estimate.overhead_seconds) / 3600
    return min(all_trials, sweep.parallel * estimate.usd_per_hour * hours)


def budget_issues(plan: Plan) -> Iterator[Issue]:
    """Yield an issue if the cost may exceed the budget in money."""
    limit = sweep_of(plan).budget.max_cost
    if limit is None:
        return

    worst = worst_usd(plan)
    path = ("sweep", "budget", "max_cost")
    if worst is None:
        estimate = plan.target.cost_estimate
        how = estimate.price_hint if estimate else OWN_TABLE_HINT
        yield Issue(path, PRICE_UNKNOWN, f"{how}, or replace it by budget.max_time")
    elif worst > limit + 1e-9:
        message = f"{sweep_of(plan).trial_count} trials may cost {worst:.2f} USD, more than {limit:.2f} USD"
        yield Issue(
            path,
            message,
            "fewer trials, a lower limits.max_cost or limits.max_runtime of each, or"
            " budget.max_time",
        )


class ServiceLimits(NamedTuple):
    """Limits of a cloud's service for sweeps."""

    name: str
    """Its name in a sentence: `a tuning job`."""
    max_trials: int
    seconds: tuple[int, int]
    """Minimum and maximum of `sweep.budget.max_time`."""
    has_target: bool = True
    """True if it can stop at a value of the objective."""


def service_issues(plan: Plan, limits: ServiceLimits) -> Iterator[Issue]:
    """Yield an issue for each part that no service, or not this one, can express."""
    sweep = sweep_of(plan)
    name = limits.name
    leave_out = f"leave it out, or {PORTABLE}"

    for key, dimension in sweep.space.items():
        path = ("sweep", "space", key)
        if not argument_of(key):
            message = f"is not an argument of the program: {name} varies only arguments"
            yield Issue(path, message, PORTABLE)
        elif isinstance(dimension, Integers) and dimension.step > 1 and sweep.method != "grid":
            message = f"has a step of {dimension.step}, which {name} does not take"
            yield Issue(path, message, f"choice(…) with at most 30 values; or {PORTABLE}")
    if sweep.sampler not in (None, sweep.method):
        message = f"{name} does not have the sampler {sweep.sampler}"
        yield Issue(("sweep", "sampler"), message, leave_out)
    if sweep.method == "grid" and sweep.trials is not None and sweep.trials < sweep.grid_size:
        message = f"{name} runs all {sweep.grid_size} points of a grid, not {sweep.trials} of them"
        yield Issue(("sweep", "trials"), message, leave_out)
    if sweep.trial_count > limits.max_trials:
        field = "trials" if sweep.trials is not None else "space"
        message = f"{sweep.trial_count} trials are more than {name} has: {limits.max_trials}"
        yield Issue(("sweep", field), message, PORTABLE)
    if sweep.retries:
        hint = f"limits.restarts starts its processes again; or {PORTABLE}"
        yield Issue(("sweep", "retries"), f"{name} starts no failed trial again", hint)
    if sweep.early_stopping is not None and sweep.method != "asha":
        yield Issue(("sweep", "early_stopping"), f"{name} compares no rungs", leave_out)
    if sweep.try_first:
        yield Issue(("sweep", "try_first"), f"{name} chooses all values itself", PORTABLE)
    if sweep.objective.target is not None and not limits.has_target:
        path = ("sweep", "objective", "target")
        yield Issue(path, f"{name} stops at no value of its objective", PORTABLE)

    least, most = limits.seconds
    seconds = sweep.budget.max_time
    if seconds is not None and not least <= seconds <= most:
        allowed = f"{exact_duration(least)} to {exact_duration(most)}"
        message = f"is {exact_duration(seconds)}, and {name} takes {allowed}"
        yield Issue(("sweep", "budget", "max_time"), message)

    yield from budget_issues(plan)
