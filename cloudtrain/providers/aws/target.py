"""Resolve a spec and the settings to a SageMaker target. No network."""

from __future__ import annotations

from dataclasses import replace

from cloudtrain.catalog.machines import select_instances
from cloudtrain.catalog.pricing import estimate_cost, known_prices
from cloudtrain.issues import Issue
from cloudtrain.planning.sagemaker import DEFAULT_MAX_RUNTIME_SECONDS, GRACE_SECONDS
from cloudtrain.planning.selection import PlannedImage
from cloudtrain.planning.target import Target
from cloudtrain.providers.aws.account import account, misspelt_region
from cloudtrain.providers.aws.image import image_of
from cloudtrain.providers.aws.rules import unused_fields
from cloudtrain.providers.aws.section import AwsSection
from cloudtrain.providers.shared.machine_choice import machine_choice, regional_prices
from cloudtrain.settings import Settings
from cloudtrain.spec.model import JobSpec

MAX_NODES = 500
DEFAULT_INSTANCE = "ml.m5.xlarge"
"""Type for a job without GPUs whose spec names no instance type."""

UNUSED = ("resources.shm",)


def target(settings: Settings, spec: JobSpec, *, rehearsal: bool) -> Target:
    """Return the target for `render`; missing or impossible settings are in its `problems`.

    `rehearsal`: placeholders replace missing account settings.
    """
    resources = spec.resources
    config, reader = account(spec.section(AwsSection), settings, rehearsal=rehearsal)
    problems = list(reader.problems)
    region = "" if any(issue.path == ("aws", "region") for issue in problems) else config.region
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
        image, wrong_image = image_of(
            spec.image, config, settings, gpu=gpus > 0, rehearsal=rehearsal, types=types
        )
    if image.recipe and not config.repository:
        config = replace(config, placeholders=(*config.placeholders, "aws.repository"))
    prices = regional_prices("aws", region, settings)
    estimate, wrong_limits = estimate_cost(
        prices.price_of(*types),
        resources.nodes,
        spec.limits,
        default_seconds=DEFAULT_MAX_RUNTIME_SECONDS,
        grace_seconds=GRACE_SECONDS,
        kept_seconds=spec.section(AwsSection).keep_alive or 0,
        price_hint=prices.hint(*types),
    )
    if region and (wrong_image or wrong_limits) and misspelt_region(region):
        problems += misspelt_region(region)
        wrong_image = []
        wrong_limits = []
    problems += wrong + wrong_image + [*prices.problems]
    if not rehearsal and not wrong and region:
        problems += wrong_limits
    return Target(
        provider="aws",
        contract="sagemaker",
        where=region,
        max_nodes=MAX_NODES,
        grace_seconds=GRACE_SECONDS,
        unused=(*UNUSED, *unused_fields(types, disk=resources.disk is not None)),
        config=replace(
            config,
            prices=known_prices(prices, types),
            poll=settings["aws.poll"],
            unpaid=tuple(issue.message for issue in wrong_limits) if rehearsal else (),
        ),
        image=image,
        instances=types,
        borrowed=reader.borrowed,
        origins={**reader.origins, "prices": settings.origins.get("prices", "")},
        gpus=gpus,
        cost_estimate=estimate,
        choice=None if wrong else machine_choice(settings, spec, types, gpus, prices),
        problems=tuple(problems),
    )
