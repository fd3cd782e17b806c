"""The target of a job on Azure ML: workspace, machines, image and cost. No network."""

from __future__ import annotations

import sys
from dataclasses import replace

from cloudtrain.catalog.machines import is_azure_size, select_instances
from cloudtrain.catalog.pricing import RegionalPrices, known_prices
from cloudtrain.catalog.regional_prices import regional_prices
from cloudtrain.errors import Issue
from cloudtrain.planning.cost import CostEstimate, estimate_cost
from cloudtrain.planning.machine_choice import machine_choice
from cloudtrain.planning.selection import image_machines
from cloudtrain.planning.target import Target
from cloudtrain.providers.azure.account import account
from cloudtrain.providers.azure.image import image_of
from cloudtrain.providers.azure.section import AzureSection
from cloudtrain.settings import Settings
from cloudtrain.spec.model import JobSpec

USUAL_NODES = 100
"""Nodes of a distributed job by default ("Manage and increase quotas"); support raises the limit."""

DEFAULT_INSTANCE = "Standard_DS3_v2"
"""Size for a job without GPUs whose spec names no machine size."""

DEFAULT_MAX_RUNTIME_SECONDS = 86_400
"""Default limit; Azure ML itself would let a job run for weeks."""

UNUSED = ("resources.disk", "limits.max_wait", "limits.retries")


def target(settings: Settings, spec: JobSpec, *, rehearsal: bool = False) -> Target:
    """Return the target for `render`; missing or impossible settings are in its `problems`.

    Only the workspace knows which machines a cluster has, so that their price is unknown unless the
    spec names their size.
    """
    resources = spec.resources
    config, reader = account(spec.section(AzureSection), settings, rehearsal=rehearsal)
    problems = list(reader.problems)
    named = resources.instance.get("azure", ())
    types: tuple[str, ...] = ()
    gpus = resources.gpus or 0
    wrong: list[Issue] = []
    if named or not config.compute or gpus == "all":
        types, gpus, wrong = select_instances(
            "azure",
            gpus=resources.gpus,
            gpu=resources.gpu,
            named=named,
            default=DEFAULT_INSTANCE,
        )

    location = config.location or ""
    machines = image_machines("azure", types, resources.nodes, gpus)
    image, wrong_image = image_of(spec.image, config, settings, machines)
    prices = regional_prices("azure", location, settings)

    estimate, wrong_limits = _estimate(prices, types, spec)
    if not location:
        more = "prices are known once azure.location is set"
        wrong_limits = [replace(issue, hint=f"{issue.hint}; {more}") for issue in wrong_limits]

    # A misspelt size also lacks a price, but the rules report that it is misspelt.
    skips_limits = rehearsal or wrong or any(not is_azure_size(name) for name in types)
    problems += wrong + wrong_image
    problems += prices.problems
    if not skips_limits:
        problems += wrong_limits

    where = location or f"the workspace {config.workspace}"
    if not location and "azure.workspace" in config.placeholders:
        where = "an unknown location"

    unpaid: tuple[str, ...] = ()
    if rehearsal:
        unpaid = tuple(f"{issue.line()} ({issue.hint})" for issue in wrong_limits)

    config = replace(
        config,
        prices=known_prices(prices, types[:1]),
        poll=settings["azure.poll"],
        unpaid=unpaid,
    )
    choice = None
    if not wrong:
        choice = machine_choice(settings, spec, types[:1], gpus, prices)

    return Target(
        provider="azure",
        contract="azureml",
        where=where,
        max_nodes=sys.maxsize,
        grace_seconds=settings["azure.stop_grace"],
        unused=UNUSED,
        config=config,
        image=image,
        instances=types,
        tries_all_instances=False,
        cluster=config.compute or "",
        borrowed=reader.borrowed,
        origins={**reader.origins, "prices": settings.origins.get("prices", "")},
        gpus=gpus,
        cost_estimate=estimate,
        choice=choice,
        problems=tuple(problems),
    )


def _estimate(
    prices: RegionalPrices, types: tuple[str, ...], spec: JobSpec
) -> tuple[CostEstimate, list[Issue]]:
    """Return the limits on the first machine, and the mistakes on every machine that a submit may try.

    One unknown price leaves the cost unknown.
    """
    estimates = []
    issues: list[Issue] = []
    unpriced = prices.unpriced(*types)
    machines = [types[:1]]
    machines += [(name,) for name in types[1:]]
    for machine in machines:
        estimate, wrong = estimate_cost(
            prices.price_of(*machine),
            spec.resources.nodes,
            spec.limits,
            default_seconds=DEFAULT_MAX_RUNTIME_SECONDS,
            grace_seconds=0,  # Azure ML ends a job at its time limit, and not later
            price_hint=prices.hint(*machine),
            unpriced=tuple(name for name in machine if name in unpriced),
        )
        estimates.append(estimate)
        issues += [issue for issue in wrong if issue not in issues]

    costs = [estimate.worst_usd for estimate in estimates[1:]]
    if None in costs:
        return replace(estimates[0], price=None, unpriced=unpriced), issues

    return replace(estimates[0], dearest_usd=max(filter(None, costs), default=0.0)), issues
