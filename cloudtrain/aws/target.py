"""The target that a spec and the settings mean on SageMaker: account, machines, image, price. Pure."""

from __future__ import annotations

from pathlib import Path

from cloudtrain.aws.account import account
from cloudtrain.aws.images import image_of
from cloudtrain.aws.rules import unheeded
from cloudtrain.catalog.choice import Problem, choose, find
from cloudtrain.contracts.sagemaker import DEFAULT_MAX_RUNTIME_SECONDS, GRACE_SECONDS
from cloudtrain.planning import Target
from cloudtrain.quote import Price, price_of, quote, read_prices
from cloudtrain.settings import Settings
from cloudtrain.spec import JobSpec

MAX_NODES = 500
DEFAULT_INSTANCE = "ml.m5.xlarge"
"""For a job without GPUs that names no type."""

UNUSED = ("resources.shm", "azure")


def target(settings: Settings, spec: JobSpec, *, rehearsal: bool) -> Target:
    """Everything that rendering needs; what is missing or impossible is listed in `problems`."""
    resources = spec.resources
    facts, origins, problems = account(spec.aws, settings, rehearsal=rehearsal)
    region = facts["region"] or ""
    types, wrong = choose(
        "aws",
        gpus=resources.gpus,
        gpu=resources.gpu,
        named=resources.instance.get("aws", ()),
        default=DEFAULT_INSTANCE,
    )
    rows = [find("aws", name) for name in types]
    gpu = resources.gpus > 0 or any(row is not None and row.gpus > 0 for row in rows)
    image, wrong_image = image_of(spec.image, region, gpu=gpu) if region else ("", [])
    own, wrong_prices = _own_prices(settings)
    made, wrong_limits = quote(
        price_of("aws", types, region, own),
        resources.nodes,
        spec.limits,
        default_seconds=DEFAULT_MAX_RUNTIME_SECONDS,
        grace_seconds=GRACE_SECONDS,
        kept_seconds=spec.aws.keep_alive or 0,
    )
    # A rehearsal costs nothing: what only money forbids is no reason to refuse it.
    problems += wrong + wrong_image + wrong_prices + ([] if rehearsal or wrong or not region else wrong_limits)
    return Target(
        provider="aws",
        contract="sagemaker",
        where=region,
        max_nodes=MAX_NODES,
        grace_seconds=GRACE_SECONDS,
        schemes=("s3",),
        unused=(*UNUSED, *unheeded(list(types), disk=resources.disk is not None)),
        facts={**facts, "instances": list(types), "image": image, "poll": settings["aws.poll"]},
        origins=origins,
        quote=made,
        problems=tuple(problems),
    )


def _own_prices(settings: Settings) -> tuple[dict[tuple[str, str], Price], list[Problem]]:
    path = settings.get("prices")
    if path is None:
        return {}, []
    try:
        return read_prices(Path(path).read_text(encoding="utf-8")), []
    except (OSError, ValueError) as error:
        return {}, [((), f"{settings.origins['prices']}: prices: {path}: {error}", None)]
