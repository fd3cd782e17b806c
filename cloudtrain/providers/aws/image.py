"""Image of a job, and the repository that images are pushed to. No network."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace

from cloudtrain.catalog import dlc_image, dlc_regions, dlc_versions, registry_domain
from cloudtrain.catalog.machines import architecture_of
from cloudtrain.errors import Issue, UsageError, did_you_mean
from cloudtrain.planning.image_contents import ImageContents, usual_contents
from cloudtrain.planning.reference import ECR
from cloudtrain.planning.selection import (
    ImageMachines,
    PlannedImage,
    planned_build,
    recipe_for,
    select_image,
)
from cloudtrain.providers.aws.account import configured_region
from cloudtrain.providers.aws.config import AwsConfig
from cloudtrain.providers.shared.account import configured_repository
from cloudtrain.settings import Settings

_DLC = "dlc:"
_PLACEHOLDER = "not-set-yet"
_NAME = r"[a-z0-9]+([._/-][a-z0-9]+)*"
"""Pattern of a repository's name in the API reference of ECR's CreateRepository."""


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


def image_of(
    image: str | Mapping[str, str],
    config: AwsConfig,
    settings: Settings,
    machines: ImageMachines,
    *,
    rehearsal: bool,
) -> tuple[PlannedImage, list[Issue]]:
    """Return the image and its problems; an image with problems may lack an address.

    `auto` is our own image if `aws.repository` is set, else the newest PyTorch container of AWS in
    our catalog.
    """
    selected = select_image(image, "aws")
    path, address, _ = selected
    if not selected.is_build and _is_address(address):
        return PlannedImage(address), []

    if selected.is_build or (address == "auto" and config.repository):
        if rehearsal and not config.repository:
            config = replace(config, repository=_PLACEHOLDER)
        repository, problems = repository_of(config)
        recipe, wrong = recipe_for(
            selected,
            settings,
            gpu=machines.has_gpus,
            platform=f"linux/{architecture_of('aws', machines.types)}",
            machine_args=machines.args,
        )
        return planned_build(recipe, repository), problems + wrong

    container, problems = _container(path, address, config.region, gpu=machines.has_gpus)
    return PlannedImage(container, contents=_contents(container)), problems


def _contents(address: str) -> ImageContents | None:
    """Return the packages of AWS's own container besides the usual ones, by its documentation."""
    version = re.search(r":(\d+\.\d+\.\d+)-\w+-py3(\d+)$", address)
    more = "boto3 botocore awscli sagemaker s3fs s3transfer opencv-python seaborn cython mpi4py"
    if not version:
        return None

    return usual_contents(version[1], f"3.{version[2]}", more)


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

    container = None
    if name == "pytorch":
        container = dlc_image(version, region, gpu)
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
    if ECR.fullmatch(configured):
        name = configured.partition("/")[2]
    else:
        name = configured

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
