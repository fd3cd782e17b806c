"""Limits of the organization, held against a plan.

They guard against mistakes. Who can change this program can pass them by: what the cloud itself
enforces is in the account's template.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fnmatch import fnmatch

from cloudtrain.catalog.pricing import prices_in_force
from cloudtrain.errors import Issue
from cloudtrain.planning.cost import HOUR, CostEstimate
from cloudtrain.planning.plan import Plan
from cloudtrain.settings import Settings, organization
from cloudtrain.units import format_duration

_HINTS = {
    "providers": "choose another one with --provider",
    "regions": "set another region in job.yaml or cloudtrain.toml",
    "machines": "name another machine with resources.instance",
    "tags": "tags: {NAME: …} in job.yaml, or in [defaults] of your settings",
    "max_runtime": "set limits.max_runtime lower",
    "max_cost": "set limits.max_runtime lower, or rent less",
}


def organization_issues(plan: Plan) -> list[Issue]:
    """Return what the organization does not allow, each at the line of its limit.

    A rehearsal and a job on this machine rent nothing: of these only the provider counts.
    """
    limits = organization()
    issues = []
    for key, message in _broken_limits(plan, limits):
        origin = limits.origins[f"organization.{key}"]
        issues.append(Issue((), f"{key}: {message}", _HINTS[key], origin=origin))

    return issues


def _broken_limits(plan: Plan, limits: Settings) -> Iterator[tuple[str, str]]:
    """Yield the name of each limit that a plan breaks, with a message."""
    target = plan.target
    yield from _not_allowed(limits, "providers", [plan.provider])
    if plan.is_rehearsal or not target.declaration.region_setting:
        return

    yield from _not_allowed(limits, "regions", [target.where])
    yield from _not_allowed(limits, "machines", target.instances or [""])
    missing = [tag for tag in limits.get("organization.tags") or () if tag not in plan.spec.tags]
    if missing:
        yield "tags", f"the job lacks {', '.join(missing)}"

    estimate = target.cost_estimate
    longest = limits.get("organization.max_runtime")
    if estimate and longest is not None and estimate.max_seconds > longest:
        own = format_duration(estimate.max_seconds)
        yield "max_runtime", f"a job may run for {format_duration(longest)}, this one for {own}"

    most = limits.get("organization.max_cost")
    if not estimate or most is None:
        return

    cost = _highest_cost(plan, estimate)
    if cost is None:
        yield "max_cost", f"the cost is unknown, as the price is; {estimate.price_hint}"
    elif cost > most:
        yield "max_cost", f"a job may cost {most:.2f} USD, this one costs up to {cost:.2f} USD"


def _not_allowed(limits: Settings, key: str, names: Sequence[str]) -> Iterator[tuple[str, str]]:
    patterns = limits.get(f"organization.{key}")
    for name in names:
        if patterns is not None and not _matches(name, patterns):
            yield key, f"{name or 'what is unknown'} is none of {', '.join(patterns)}"


def _highest_cost(plan: Plan, estimate: CostEstimate) -> float | None:
    """Return the cost by the higher of the user's price and the tables' prices; None if unknown."""
    own = estimate.worst_usd
    if not own:
        return own  # unknown, or paid in advance

    provider = plan.target.provider
    tables = prices_in_force(provider, plan.target.where, None, plan.context.data_dir)
    billed = [name for name in plan.target.instances if name not in estimate.prepaid]
    listed = [tables.price_of(name) for name in billed]
    per_hour = max((price.usd for price in listed if price), default=0.0) * estimate.nodes
    return max(own, per_hour * estimate.billed_seconds / HOUR)


def _matches(name: str, patterns: Sequence[str]) -> bool:
    return any(fnmatch(name.lower(), pattern.lower()) for pattern in patterns)
