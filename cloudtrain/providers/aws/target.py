"""Account settings and image of a job, from the spec, the settings or the AWS CLI, and its target. No network."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from cloudtrain.catalog import dlc_image, dlc_regions, dlc_versions, registry_domain
from cloudtrain.catalog.machines import architecture_of, mixed_architectures, select_instances
from cloudtrain.catalog.pricing import Price, estimate_cost, known_prices
from cloudtrain.errors import Issue, UsageError, did_you_mean
from cloudtrain.planning.recipe import ImageContents, usual_contents
from cloudtrain.planning.reference import ECR
from cloudtrain.planning.sagemaker import DEFAULT_MAX_RUNTIME_SECONDS, GRACE_SECONDS
from cloudtrain.planning.selection import (
    CLOUD_PLATFORM,
    PlannedImage,
    fabric_args,
    planned_build,
    recipe_for,
    select_image,
)
from cloudtrain.planning.target import Target
from cloudtrain.providers.aws.config import AwsConfig
from cloudtrain.providers.aws.section import AwsSection
from cloudtrain.providers.shared.account import (
    CliDefault,
    RequiredSetting,
    SettingsReader,
    configured_repository,
    environment_value,
    ini_value,
)
from cloudtrain.providers.shared.machine_choice import machine_choice, regional_prices
from cloudtrain.settings import Settings
from cloudtrain.spec.model import JobSpec

MAX_NODES = 500
TRANSFER_SECONDS = 600
"""Allowance for image, inputs and upload, which SageMaker bills but MaxRuntimeInSeconds excludes.

Observed in 29 jobs (2020 to 2026): image 20 to 185 s, upload 0 to 371 s, each longer if large.
"""
PREPAID = Price(usd=0.0, as_of="", source="the training plan is paid in advance")
DEFAULT_INSTANCE = "ml.m5.xlarge"
"""Type for a job without GPUs whose spec names no instance type."""

_REGION = RequiredSetting("us-east-1", "where to run", placeholder="us-east-1")
_ROLE = RequiredSetting(
    "arn:aws:iam::ACCOUNT:role/NAME",
    "the role that the job runs as",
    placeholder="arn:aws:iam::123456789012:role/not-set-yet",
)
_BUCKET = RequiredSetting(
    "my-bucket",
    "where source, checkpoints and models are kept",
    placeholder="not-set-yet",
)


def target(settings: Settings, spec: JobSpec, *, rehearsal: bool = False) -> Target:
    """Return the target for `render`; missing or impossible settings are in its `problems`.

    `rehearsal`: placeholders replace missing account settings.
    """
    resources = spec.resources
    config, reader = _account(spec.section(AwsSection), settings, rehearsal=rehearsal)
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
            spec.image, config, settings, gpu=gpus > 0, rehearsal=rehearsal, types=types,
            machine_args=fabric_args("aws", types, resources.nodes, gpus),
        )  # fmt: skip
    if image.recipe and not config.repository:
        config = replace(config, placeholders=(*config.placeholders, "aws.repository"))

    prices = regional_prices("aws", region, settings)
    estimate, wrong_limits = estimate_cost(
        PREPAID if spec.section(AwsSection).training_plan else prices.price_of(*types),
        resources.nodes,
        spec.limits,
        default_seconds=DEFAULT_MAX_RUNTIME_SECONDS,
        grace_seconds=GRACE_SECONDS,
        kept_seconds=spec.section(AwsSection).keep_alive or 0,
        transfer_seconds=TRANSFER_SECONDS,
        price_hint=prices.hint(*types),
        unpriced=prices.unpriced(*types),
    )
    problems += wrong + wrong_image + [*prices.problems]
    if not rehearsal and not wrong and region:
        problems += wrong_limits

    return Target(
        provider="aws",
        contract="sagemaker",
        where=region,
        max_nodes=MAX_NODES,
        grace_seconds=GRACE_SECONDS,
        unused=("resources.shm",),
        config=replace(
            config,
            prices=known_prices(prices, types),
            poll=settings["aws.poll"],
            unpaid=tuple(f"{issue.line()} ({issue.hint})" for issue in wrong_limits)
            if rehearsal
            else (),
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


def _account(
    aws: AwsSection,
    settings: Settings,
    *,
    rehearsal: bool,
) -> tuple[AwsConfig, SettingsReader]:
    """Return the account's settings, and the reader with origins and missing settings.

    In a rehearsal placeholders replace missing settings; `placeholders` names them.
    """
    reader = SettingsReader("aws", aws, settings, _cli_defaults, rehearsal=rehearsal)
    config = AwsConfig(
        region=reader.required("region", _REGION),
        profile=cli_profile(),
        role=reader.required("role", _ROLE),
        bucket=reader.required("bucket", _BUCKET),
        repository=reader.optional("repository"),
        subnets=reader.list_of("subnets"),
        security_groups=reader.list_of("security_groups"),
        kms_key=reader.optional("kms_key"),
        placeholders=tuple(reader.placeholders),
    )
    if config.profile and not rehearsal:
        reader.origins["aws.profile"] = "environment AWS_PROFILE"
    if config.region:  # prices and images depend on it; the other settings are checked by the rules
        reader.problems += format_issues("region", config.region)

    return config, reader


def format_issues(name: str, value: str) -> list[Issue]:
    """Return issues with the format of a region, a role ARN or a bucket name."""
    if _FORMS[name].fullmatch(value):
        return []

    path = ("aws", name)
    if name == "region":
        return [
            Issue(
                path,
                f"{value!r} is not a region{did_you_mean(value, dlc_regions())}",
                "such as us-east-1",
            )
        ]
    if name == "role":
        hint = f"the full ARN: arn:aws:iam::ACCOUNT:role/{value.rpartition('/')[2] or 'NAME'}"
        return [Issue(path, f"{value!r} is not a role ARN", hint)]

    hint = "the bucket's name alone: 3 to 63 lower-case letters, digits, dots and hyphens"
    return [Issue(path, f"{value!r} is not a valid bucket name", hint)]


_FORMS = {
    "region": re.compile(r"[a-z]{2,4}(-[a-z]+)+-\d+"),
    "role": re.compile(r"arn:aws[a-z-]*:iam::\d{12}:role/?[a-zA-Z_0-9+=,.@\-_/]+"),
    "bucket": re.compile(r"(?!.*\.\.)[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]"),
}


def region_of(settings: Settings) -> str:
    """Return the region without a spec. Raise UsageError if it is not set."""
    region = configured_region(settings)
    if not region:
        raise UsageError(
            "aws.region is not set",
            hint="export CLOUDTRAIN_AWS_REGION=us-east-1, or cloudtrain.toml",
        )

    return region


def image_repository(settings: Settings) -> str:
    """Return the ECR repository to push images to, for commands that read no spec.

    Raise UsageError if it is not set or invalid.
    """
    name = configured_repository(settings, "aws")
    role = str(settings.get("aws.role") or "")

    repository, problems = repository_of(
        AwsConfig(region=configured_region(settings), role=role, repository=name)
    )
    for issue in problems:
        raise UsageError(issue.line(), hint=issue.hint)

    return repository


def configured_region(settings: Settings) -> str:
    """Return the region without a spec; empty if it is not set."""
    return str(settings.get("aws.region") or (cli_default_region() or [""])[0])


def cli_profile(environ: Mapping[str, str] = os.environ) -> str:
    """Return the profile that the AWS CLI would use, by its variables; empty for the default."""
    return environ.get("AWS_DEFAULT_PROFILE") or environ.get("AWS_PROFILE") or ""


def _cli_defaults() -> dict[str, CliDefault]:
    region = cli_default_region()
    return {"region": region} if region else {}


def cli_default_region(environ: Mapping[str, str] = os.environ) -> CliDefault | None:
    """Return the region that the AWS CLI would use, or None.

    Environment variables come first, then the profile in `~/.aws/config`, as in "Configuration and
    credential file settings" of the AWS documentation. Newer SDKs read `AWS_REGION` and boto3 reads
    `AWS_DEFAULT_REGION`: both count here.
    """
    for name in ("AWS_REGION", "AWS_DEFAULT_REGION"):
        if default := environment_value(environ, name):
            return default

    profile = cli_profile(environ) or "default"
    path = Path(environ.get("AWS_CONFIG_FILE") or "~/.aws/config").expanduser()
    for section in (f"profile {profile}", *(["default"] if profile == "default" else [])):
        if default := ini_value(path, section, "region"):
            return default[0], f"{default[1]}, profile {profile}"

    return None


_DLC = "dlc:"
_PLACEHOLDER = "not-set-yet"
_NAME = r"[a-z0-9]+([._/-][a-z0-9]+)*"
"""Pattern of a repository's name in the API reference of ECR's CreateRepository."""


def image_of(
    image: str | Mapping[str, str], config: AwsConfig, settings: Settings, *, gpu: bool, rehearsal: bool,
    types: Sequence[str] = (), machine_args: Sequence[str] = (),
) -> tuple[PlannedImage, list[Issue]]:  # fmt: skip
    """Return the image and its problems; an image with problems may lack an address.

    `auto` is our own image if `aws.repository` is set, else the newest PyTorch container of AWS in
    our catalog. `types`: the instance types it is for. `machine_args`: see `recipe_for`.
    """
    selected = select_image(image, "aws")
    path, address = selected
    if not selected.is_build and _is_address(address):
        return PlannedImage(address), []

    mixed = mixed_architectures("aws", types)
    platform = f"linux/{architecture_of('aws', types)}"
    if selected.is_build or (address == "auto" and config.repository):
        if rehearsal and not config.repository:
            config = replace(config, repository=_PLACEHOLDER)
        repository, problems = repository_of(config)
        recipe, wrong = recipe_for(
            selected,
            settings,
            gpu=gpu,
            platform=platform,
            machine_args=machine_args,
        )
        return planned_build(recipe, repository), problems + wrong + mixed

    container, problems = _container(path, address, config.region, gpu=gpu)
    if platform != CLOUD_PLATFORM and not mixed:
        hint = "aws.repository, for our image built for ARM; or your own image"
        message = f"AWS's containers are built for amd64, and {types[0]} has ARM processors"
        mixed = [Issue(path, message, hint)]

    return PlannedImage(container, contents=_contents(container)), problems + mixed


def _contents(address: str) -> ImageContents | None:
    """Return the packages of AWS's own container besides the usual ones, by its documentation."""
    version = re.search(r":(\d+\.\d+\.\d+)-\w+-py3(\d+)$", address)
    more = "boto3 botocore awscli sagemaker s3fs s3transfer opencv-python seaborn cython mpi4py"
    return usual_contents(version[1], f"3.{version[2]}", more) if version else None


def _is_address(text: str) -> bool:
    return text != "auto" and not text.startswith(_DLC)


def _container(
    path: tuple[str | int, ...],
    address: str,
    region: str,
    *,
    gpu: bool,
) -> tuple[str, list[Issue]]:
    """Return the address of an AWS Deep Learning Container; empty if there is a problem."""
    if address == "auto":
        address = f"{_DLC}pytorch-{dlc_versions()[0]}"

    name, _, version = address.removeprefix(_DLC).partition("-")
    names = tuple(f"{_DLC}pytorch-{dlc_version}" for dlc_version in dlc_versions())

    container = dlc_image(version, region, gpu) if name == "pytorch" else None
    if container is None and region not in dlc_regions():
        hint = "copy the image into your repository there, and give its address"
        meant = did_you_mean(region, dlc_regions())
        message = f"AWS keeps no Deep Learning Containers in {region!r}, as far as we know{meant}"
        return "", [Issue(("aws", "region"), message, hint)]
    if container is None:
        message = f"unknown container {address!r}{did_you_mean(address, names)}"
        return "", [Issue(path, message, f"known: {', '.join(names)}; any other by its address")]

    return container, []


def repository_of(config: AwsConfig) -> tuple[str, list[Issue]]:
    """Return the address to push to, and its problems; the address is empty if there are any.

    A bare name is a repository in the account of the role, in the job's region.
    """
    configured = config.repository or ""
    if not configured:
        hint = (
            "aws: {repository: train} in job.yaml, [aws] repository in cloudtrain.toml, or"
            " CLOUDTRAIN_AWS_REPOSITORY"
        )
        return "", [
            Issue(
                ("aws", "repository"),
                "is not set: no repository is configured for the image",
                hint,
            )
        ]

    account = re.match(r"arn:[\w-]+:iam::(\d{12}):", config.role)
    name = configured.partition("/")[2] if ECR.fullmatch(configured) else configured
    if not re.fullmatch(_NAME, name) or "." in name.partition("/")[0]:
        hint = "its name, or ACCOUNT.dkr.ecr.REGION.amazonaws.com/NAME, without a tag"
        return "", [Issue(("aws", "repository"), f"{configured!r} is not an ECR repository", hint)]
    if name != configured:
        return configured, []
    if account is None:
        hint = "ACCOUNT.dkr.ecr.REGION.amazonaws.com/NAME, or aws.role, whose account it is in"
        return "", [
            Issue(
                ("aws", "repository"),
                f"{configured!r} is a name alone, and no role says which account it is in",
                hint,
            )
        ]

    if not config.region:
        hint = "export CLOUDTRAIN_AWS_REGION=us-east-1, or [aws] region in cloudtrain.toml"
        return "", [
            Issue(
                ("aws", "region"),
                f"is not set, and the repository {configured!r} is a name alone",
                hint,
            )
        ]

    return f"{account[1]}.dkr.ecr.{config.region}.{registry_domain(config.region)}/{configured}", []
