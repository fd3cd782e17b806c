"""The image of a SageMaker job: from what a spec says to an address. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping

from cloudtrain.catalog.choice import Problem
from cloudtrain.catalog.images import dlc_image, dlc_regions, dlc_versions
from cloudtrain.spec.fields import did_you_mean

_DLC = "dlc:"
ECR = re.compile(r"(\d{12})\.dkr\.ecr(?:-fips)?\.([a-z0-9-]+)\.(amazonaws\.com(?:\.cn)?|[a-z0-9.-]+)/.+")


def image_of(image: str | Mapping[str, str], region: str, *, gpu: bool) -> tuple[str, list[Problem]]:
    """The address, and what is wrong with the wish. `auto` is AWS's newest PyTorch container that we know."""
    at: tuple[str, ...] = ("image",)
    if isinstance(image, Mapping):
        if "build" in image:
            hint = "build and push it with docker, then give its address: image: {aws: …}"
            return "", [(("image", "build"), "an image is submitted by its address, after it was pushed", hint)]
        at, address = ("image", "aws"), image.get("aws", "auto")
    else:
        address = image
    if address == "auto":
        address = f"{_DLC}pytorch-{dlc_versions()[0]}"
    if not address.startswith(_DLC):
        return address, []
    name, _, version = address.removeprefix(_DLC).partition("-")
    known = tuple(f"{_DLC}pytorch-{each}" for each in dlc_versions())
    found = dlc_image(version, region, gpu) if name == "pytorch" else None
    if found is None and region not in dlc_regions():
        hint = "copy the image into a repository of your own there, and give its address"
        return "", [(at, f"AWS keeps no Deep Learning Containers in {region}, as far as we know", hint)]
    if found is None:
        message = f"unknown container {address!r}{did_you_mean(address, known)}"
        return "", [(at, message, f"known: {', '.join(known)}; any other by its address")]
    return found, []
