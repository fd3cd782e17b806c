"""The image of a run in containers of this machine: from what a spec says to an address. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from cloudtrain.catalog.choice import Problem
from cloudtrain.contracts.container import OUR_IMAGES


def image_of(image: str | Mapping[str, str], *, gpu: bool) -> tuple[str, tuple[Problem, ...]]:
    """The address on this machine, and what is wrong with the wish. `auto`, and nothing said, is our own image."""
    at: tuple[str, ...] = ("image",)
    if isinstance(image, Mapping):
        if "build" in image:
            hint = f"docker build -f {image['build']} -t my-image . and then --set image=my-image"
            return "", ((("image", "build"), "the docker provider starts images that are built already", hint),)
        at, address = ("image", "docker"), image.get("docker", "auto")
    else:
        address = image
    if address == "auto":
        return OUR_IMAGES["cuda" if gpu else "cpu"], ()
    kind, _, _ = address.partition(":")
    if kind in ("dlc", "azureml"):
        hint = f"an address for each: image: {{docker: auto, {_CLOUDS[kind]}: '{address}'}}"
        return "", ((at, f"{address} means something in {_CLOUDS[kind]} alone", hint),)
    return address, ()


_CLOUDS = {"dlc": "aws", "azureml": "azure"}
