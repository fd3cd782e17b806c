"""Limits of the organization, held against a plan.

They guard against mistakes. Who can change this program can pass them by: what the cloud itself
enforces is in the account's template.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fnmatch import fnmatch
from typing import Any

from cloudtrain.catalog.pricing import prices_in_force
from cloudtrain.errors import Issue
from cloudtrain.planning.cost import HOUR, CostEstimate
from cloudtrain.planning.plan import Plan
from cloudtrain.settings import Settings, organization
from cloudtrain.units import format_duration

_ASK = "ask whoever administers this machine to change the limit"


def organization_issues(plan: Plan) -> list[Issue]:
    """Return what the organization does not allow, each at the line of its limit.

    A rehearsal and a job on this machine rent nothing: of these only the provider counts.
    """
    limits = organization()
    issues = []
    for key, (message, hint) in _broken_limits(plan, limits):
        text = f"{key}: {message}"
        issues.append(Issue((), text, hint, origin=limits.origins[f"organization.{key}"]))

    return issues


def _broken_limits(plan: Plan, limits: Settings) -> Iterator[tuple[str, tuple[str, str]]]:
    """Yield the name of each limit that a plan breaks, with a message and a hint."""
    allowed = limits.get("organization.providers")
    if allowed is not None and plan.provider not in allowed:
        message = f"jobs may run on {_listed(allowed)}, not on {plan.provider}"
        yield "providers", (message, f"--provider {allowed[0]}")

    target = plan.target
    if plan.is_rehearsal or not target.declaration.region_setting:
        return

    allowed = limits.get("organization.regions")
    if allowed is not None and not _matches(target.where, allowed):
        message = f"jobs may run in {_listed(allowed)}, not in {target.where or 'an unset region'}"
        setting = f"{target.provider}.{target.declaration.region_setting}"
        yield "regions", (message, f"set {setting}")

    allowed = limits.get("organization.machines")
    wrong = [name for name in target.instances if not _matches(name, allowed or ())]
    if allowed is not None and (wrong or not target.instances):
        machines = _listed(wrong) or f"the machines of {target.cluster}, which are unknown"
        hint = f"name a machine with resources.instance, such as {allowed[0]}"
        yield "machines", (f"{_listed(allowed)} may be rented, not {machines}", hint)

    missing = [tag for tag in limits.get("organization.tags") or () if tag not in plan.spec.tags]
    if missing:
        hint = f"tags: {{{missing[0]}: …}} in job.yaml, or in [defaults] of your settings"
        yield "tags", (f"the job lacks the tags {_listed(missing)}", hint)

    if target.cost_estimate is not None:
        yield from _broken_bounds(plan, target.cost_estimate, limits)


def _broken_bounds(
    plan: Plan, estimate: CostEstimate, limits: Settings
) -> Iterator[tuple[str, tuple[str, str]]]:
    most: Any = limits.get("organization.max_runtime")
    if most is not None and estimate.max_seconds > most:
        longest = format_duration(most)
        message = (
            f"a job may run for {longest}, this one for {format_duration(estimate.max_seconds)}"
        )
        yield "max_runtime", (message, f"set limits.max_runtime to {longest} or less")

    most = limits.get("organization.max_cost")
    if most is None:
        return

    cost = _highest_cost(plan, estimate)
    if cost is None:
        message = "the price of the machine is unknown, and so is the cost"
        yield "max_cost", (message, estimate.price_hint)
    elif cost > most + 1e-9:
        message = f"a job may cost {most:.2f} USD, this one costs up to {cost:.2f} USD"
        yield "max_cost", (message, f"set limits.max_runtime lower, rent less, or {_ASK}")


def _highest_cost(plan: Plan, estimate: CostEstimate) -> float | None:
    """Return the cost by the higher of the user's price and those of the tables; None if unknown."""
    own = estimate.worst_usd
    if not own:
        return own  # unknown, or paid in advance

    provider = plan.target.provider
    tables = prices_in_force(provider, plan.target.where, None, plan.context.data_dir)
    listed = [tables.price_of(name) for name in plan.target.instances]
    per_hour = max((price.usd for price in listed if price), default=0.0) * estimate.nodes
    return max(own, per_hour * (estimate.max_seconds + estimate.overhead_seconds) / HOUR)


def _matches(name: str, patterns: Sequence[str]) -> bool:
    return any(fnmatch(name.lower(), pattern.lower()) for pattern in patterns)


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names)
