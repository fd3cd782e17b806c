"""The target of a job on SageMaker: account, machines, image and cost. No network."""

from __future__ import annotations

import sys
from dataclasses import replace

from cloudtrain.catalog.machines import select_instances
from cloudtrain.catalog.pricing import Price, known_prices
from cloudtrain.catalog.regional_prices import regional_prices
from cloudtrain.errors import Issue
from cloudtrain.planning.cost import estimate_cost
from cloudtrain.planning.machine_choice import machine_choice
from cloudtrain.planning.sagemaker import DEFAULT_MAX_RUNTIME_SECONDS, GRACE_SECONDS
from cloudtrain.planning.selection import PlannedImage, image_machines
from cloudtrain.planning.target import Target
from cloudtrain.providers.aws.account import account
from cloudtrain.providers.aws.image import image_of
from cloudtrain.providers.aws.queue_request import attempts_of
from cloudtrain.providers.aws.section import AwsSection
from cloudtrain.settings import Settings
from cloudtrain.spec.model import JobSpec

USUAL_NODES = 500
"""Minimum number of nodes for a warning of a plan; quotas, which AWS raises on request, are the limit."""

TRANSFER_SECONDS = 600
"""Allowance for image, inputs and upload, which SageMaker bills but MaxRuntimeInSeconds excludes.

Observed in 29 jobs (2020 to 2026): image 20 to 185 s, upload 0 to 371 s, each longer if large.
"""
PREPAID = Price(usd=0.0, as_of="", source="the training plan is paid in advance")
DEFAULT_INSTANCE = "ml.m5.xlarge"
"""Type for a job without GPUs whose spec names no instance type."""


def target(settings: Settings, spec: JobSpec, *, rehearsal: bool = False) -> Target:
    """Return the target for `render`; missing or impossible settings are in its `problems`.

    `rehearsal`: placeholders replace missing account settings.
    """
    resources = spec.resources
    config, reader = account(spec.section(AwsSection), settings, rehearsal=rehearsal)
    problems = list(reader.problems)
    region = config.region
    if any(issue.path == ("aws", "region") for issue in problems):
        region = ""

    types, gpus, wrong = select_instances(
        "aws",
        gpus=resources.gpus,
        gpu=resources.gpu,
        named=resources.instance.get("aws", ()),
        default=DEFAULT_INSTANCE,
    )
    image = PlannedImage("")

    wrong_image: list[Issue] = []
    if region:
        machines = image_machines("aws", types, resources.nodes, gpus)
        image, wrong_image = image_of(spec.image, config, settings, machines, rehearsal=rehearsal)
    if image.recipe and not config.repository:
        config = replace(config, placeholders=(*config.placeholders, "aws.repository"))

    prices = regional_prices("aws", region, settings)
    prepaid = tuple(spec.section(AwsSection).training_plans(types))
    billed = [name for name in types if name not in prepaid]
    price: Price | None = PREPAID
    if billed or not prepaid:
        price = prices.price_of(*billed)

    estimate, wrong_limits = estimate_cost(
        price,
        resources.nodes,
        spec.limits,
        default_seconds=DEFAULT_MAX_RUNTIME_SECONDS,
        grace_seconds=GRACE_SECONDS,
        kept_seconds=spec.section(AwsSection).keep_alive or 0,
        transfer_seconds=TRANSFER_SECONDS,
        price_hint=prices.hint(*billed),
        unpriced=tuple(name for name in prices.unpriced(*types) if name not in prepaid),
        prepaid=prepaid,
        attempts=attempts_of(spec.limits) if config.queue else 1,
    )
    problems += wrong + wrong_image
    problems += prices.problems
    if not rehearsal and not wrong and region:
        problems += wrong_limits

    unpaid: tuple[str, ...] = ()
    if rehearsal:
        unpaid = tuple(f"{issue.line()} ({issue.hint})" for issue in wrong_limits)

    config = replace(
        config,
        prices=known_prices(prices, types),
        poll=settings["aws.poll"],
        unpaid=unpaid,
    )
    choice = None
    if not wrong and not prepaid:  # no other machine costs less
        choice = machine_choice(settings, spec, types, gpus, prices)

    return Target(
        provider="aws",
        contract="sagemaker",
        where=region,
        max_nodes=sys.maxsize,
        grace_seconds=GRACE_SECONDS,
        unused=("resources.shm",),
        config=config,
        image=image,
        instances=types,
        borrowed=reader.borrowed,
        origins={**reader.origins, "prices": settings.origins.get("prices", "")},
        gpus=gpus,
        cost_estimate=estimate,
        choice=choice,
        problems=tuple(problems),
    )
