"""Image or environment of a job, and the repository that images are pushed to. No network."""

from __future__ import annotations

import re
from collections.abc import Mapping

from cloudtrain.catalog.machines import architecture_of
from cloudtrain.errors import Issue
from cloudtrain.planning.image_contents import usual_contents
from cloudtrain.planning.selection import (
    ImageMachines,
    PlannedImage,
    context_issues,
    planned_build,
    recipe_for,
    select_image,
)
from cloudtrain.providers.azure.config import AzureConfig
from cloudtrain.providers.shared.account import configured_repository
from cloudtrain.settings import Settings

CURATED = "azureml:AzureML-acpt-pytorch-2.8-cuda12.6@latest"
"""Microsoft's own PyTorch environment, the meaning of `auto`.

The official cifar-distributed example runs in it.
"""

CURATED_TORCH = "2.8.0"
CURATED_PYTHON = "3.10"

CURATED_MORE = (
    "azureml-core azureml-mlflow mlflow mlflow-skinny tensorboard deepspeed onnx onnxruntime"
    " azure-identity"
)
"""Its packages besides the usual ones, by its documentation."""

# Compiled late: most plans need few of them.
ASSET = r"azureml:[\w.-]+(:[\w.-]+|@[\w.-]+)"
"""A registered environment, data asset or model."""
_REGISTRY = r"azureml://registries/[\w.-]+/environments/[\w.-]+/(versions|labels)/[\w.-]+"
_DOCKER = r"[a-z0-9][\w.-]*(:\d+)?(/[a-z0-9][\w.-]*)*(:[\w.-]{1,128})?(@sha256:[0-9a-f]{64})?"


def image_repository(settings: Settings) -> str:
    """Return `azure.repository`, in any registry that the workspace may pull from."""
    return configured_repository(settings, "azure")


def image_of(
    image: str | Mapping[str, str],
    config: AzureConfig,
    settings: Settings,
    machines: ImageMachines,
) -> tuple[PlannedImage, list[Issue]]:
    """Return the image or environment as one text, and its problems.

    If `azure.repository` is set, `auto` is our own image, and a Dockerfile is built on this
    machine. Otherwise `auto` is Microsoft's own environment, and Azure ML itself builds `{build:
    Dockerfile}`, whose path is the address.
    """
    selected = select_image(image, "azure")
    if config.repository and (selected.is_build or selected.text == "auto"):
        recipe, wrong = recipe_for(
            selected,
            settings,
            gpu=machines.has_gpus,
            platform=f"linux/{architecture_of('azure', machines.types)}",
            machine_args=machines.args,
        )
        return planned_build(recipe, config.repository), wrong
    if selected.text != "auto":
        return PlannedImage(selected.text), context_issues(selected, settings)

    contents = usual_contents(CURATED_TORCH, CURATED_PYTHON, CURATED_MORE)
    return PlannedImage(CURATED, contents=contents), []


def check_image_name(image: str | Mapping[str, str]) -> list[Issue]:
    """Return issues with the address or the name of an environment; empty for `auto` and builds."""
    selected = select_image(image, "azure")
    path, text, _ = selected
    if selected.is_build or text == "auto":
        return []
    problem = _wrong(text)
    if not problem:
        return []

    message, hint = problem
    return [Issue(path, message, hint)]


def _wrong(image: str) -> tuple[str, str] | None:
    if image.startswith("dlc:"):
        hint = "one per provider: {aws: dlc:…, azure: auto}"
        return f"{image} is a container of AWS, which Azure ML cannot pull", hint
    if ".dkr.ecr." in image:
        hint = "one per provider: {aws: …, azure: myregistry.azurecr.io/train:1}"
        return f"{image} is in AWS's registry, where Azure ML cannot log in", hint
    if image.startswith("azureml:"):
        if re.fullmatch(f"{ASSET}|{_REGISTRY}", image):
            return None
        hint = (
            "azureml:NAME:VERSION, azureml:NAME@latest or"
            " azureml://registries/…/environments/NAME/versions/VERSION"
        )
        return f"{image!r} does not name an environment", hint
    if not re.fullmatch(_DOCKER, image):
        return f"{image!r} is not an image address", "registry/name:tag, or azureml:NAME@latest"

    return None
