"""The image of a run in containers of this machine: from what a spec says to an address. Reads a recipe's files."""

from __future__ import annotations

from collections.abc import Mapping

from cloudtrain.images.selection import PlannedImage, asked, built, is_build, recipe_for
from cloudtrain.issues import Issue
from cloudtrain.settings import Settings

_CLOUDS = {"dlc": "aws", "azureml": "azure"}


def image_of(
    image: str | Mapping[str, str], settings: Settings, *, gpu: bool
) -> tuple[PlannedImage, tuple[Issue, ...]]:
    """The image, by its name on this machine, and what is wrong with the wish.

    `auto`, and nothing said, is our own image.
    """
    wish = asked(image, "docker")
    at, address = wish
    if is_build(wish) or address == "auto":
        recipe, problems = recipe_for(wish, settings, gpu=gpu)
        return built(recipe), tuple(problems)
    cloud = _CLOUDS.get(address.partition(":")[0])
    if cloud:
        hint = f"an address for each: image: {{docker: auto, {cloud}: '{address}'}}"
        return PlannedImage(""), (Issue(at, f"{address} means something in {cloud} alone", hint),)
    return PlannedImage(address), ()
