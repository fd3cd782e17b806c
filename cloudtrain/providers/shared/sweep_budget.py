"""Limits of a cloud's own sweep: its budget, and what no such service supports. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from cloudtrain.catalog.pricing import OWN_TABLE_HINT, PRICE_UNKNOWN
from cloudtrain.errors import Issue
from cloudtrain.planning.plan import Plan
from cloudtrain.planning.tuned import sweep_of


def worst_usd(plan: Plan) -> float | None:
    """Return the maximum cost of all trials together; None if the price is unknown.

    A trial costs at most its own cap; at most `parallel` trials run during the maximum time of the
    sweep.
    """
    sweep = plan.spec.sweep
    estimate = plan.target.cost_estimate
    if (
        sweep is None
        or estimate is None
        or estimate.worst_usd is None
        or estimate.usd_per_hour is None
    ):
        return None
    all_trials = sweep.trial_count * estimate.worst_usd
    if sweep.budget.max_time is None or estimate.kept_seconds:
        return all_trials
    at_once = (
        sweep.parallel
        * estimate.usd_per_hour
        * (sweep.budget.max_time + estimate.overhead_seconds)
        / 3600
    )
    return min(all_trials, at_once)


def budget_issues(plan: Plan) -> Iterator[Issue]:
    """Yield an issue if the cost may exceed the budget in money."""
    sweep = plan.spec.sweep
    worst = worst_usd(plan)
    path = ("sweep", "budget", "max_cost")
    limit = sweep.budget.max_cost if sweep else None
    if sweep is None or limit is None:
        return
    if worst is None:
        how = plan.target.cost_estimate.price_hint if plan.target.cost_estimate else OWN_TABLE_HINT
        yield Issue(path, PRICE_UNKNOWN, f"{how}, or replace it by budget.max_time")
    elif worst > limit + 1e-9:
        message = f"{sweep.trial_count} trials may cost {worst:.2f} USD, more than {limit:.2f} USD"
        yield Issue(
            path,
            message,
            "fewer trials, a lower limits.max_cost or limits.max_runtime of each, or"
            " budget.max_time",
        )


PORTABLE = "engine: portable does this from your machine, with the same section"


def gap_issues(plan: Plan, service: str, *, has_target: bool = True) -> Iterator[Issue]:
    """Yield an issue for each part that a service would ignore.

    `service`: its name in a sentence. `has_target`: whether it can stop at a value of the
    objective.
    """
    sweep = sweep_of(plan)
    if sweep.try_first:
        yield Issue(("sweep", "try_first"), f"{service} chooses all values itself", PORTABLE)
    if sweep.objective.target is not None and not has_target:
        yield Issue(
            ("sweep", "objective", "target"),
            f"{service} stops at no value of its objective",
            PORTABLE,
        )
