"""The environment of an Azure ML job: from what a spec says to an image, a curated environment or a build. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping

from cloudtrain.catalog.choice import Problem

CURATED = "azureml:AzureML-acpt-pytorch-2.8-cuda12.6@latest"
"""Microsoft's own PyTorch environment: what `auto` means. The official cifar-distributed example runs in it."""

# Compiled when they are needed: a plan has no time to lose.
_ASSET = r"azureml:[\w.-]+(:[\w.-]+|@[\w.-]+)"
_REGISTRY = r"azureml://registries/[\w.-]+/environments/[\w.-]+/(versions|labels)/[\w.-]+"
_DOCKER = r"[a-z0-9][\w.-]*(:\d+)?(/[a-z0-9][\w.-]*)*(:[\w.-]{1,128})?(@sha256:[0-9a-f]{64})?"


def image_of(image: str | Mapping[str, str]) -> tuple[str, list[Problem]]:
    """The image or environment in one text, and what is wrong with the wish.

    Of `{build: Dockerfile}` the Dockerfile's path: Azure ML builds it itself.
    """
    at: tuple[str, ...] = ("image",)
    if isinstance(image, Mapping):
        if "build" in image:
            return image["build"], []
        at, image = ("image", "azure"), image.get("azure", "auto")
    if image == "auto":
        return CURATED, []
    if image.startswith("dlc:"):
        hint = "one per provider: {aws: dlc:…, azure: auto}"
        return image, [(at, f"{image} is AWS's own container, which Azure ML cannot pull", hint)]
    if ".dkr.ecr." in image:
        hint = "one per provider: {aws: …, azure: myregistry.azurecr.io/train:1}"
        return image, [(at, f"{image} lies in AWS's registry, where Azure ML cannot log in", hint)]
    if image.startswith("azureml:"):
        if re.fullmatch(f"{_ASSET}|{_REGISTRY}", image):
            return image, []
        hint = "azureml:NAME:VERSION, azureml:NAME@latest or azureml://registries/…/environments/NAME/versions/VERSION"
        return image, [(at, f"{image!r} names no environment", hint)]
    if not re.fullmatch(_DOCKER, image):
        return image, [(at, f"{image!r} is no image's address", "registry/name:tag, or azureml:NAME@latest")]
    return image, []


def environment_of(image: str, build: tuple[str, str] | None) -> str | dict[str, object]:
    """The `environment` of a command job. `build`: the folder of a Dockerfile and its name in there."""
    if build is not None:
        return {"build": {"path": build[0], "dockerfile_path": build[1]}}
    return image if image.startswith("azureml:") else {"image": image}
