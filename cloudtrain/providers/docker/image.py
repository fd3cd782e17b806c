"""The image of a run in containers of this machine: from what a spec says to an address. Reads a recipe's files."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cloudtrain.images.selection import asked, built, is_build, recipe_for
from cloudtrain.issues import Issue
from cloudtrain.settings import Settings

_CLOUDS = {"dlc": "aws", "azureml": "azure"}


def image_of(
    image: str | Mapping[str, str], settings: Settings, *, gpu: bool
) -> tuple[dict[str, Any], tuple[Issue, ...]]:
    """The facts `image`, its name on this machine, and `recipe`, if we build it; and what is wrong with the wish.

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
        return {"image": "", "recipe": None}, (Issue(at, f"{address} means something in {cloud} alone", hint),)
    return {"image": address, "recipe": None}, ()
