"""The image of a run in containers of this machine: from what a spec says to an address. Reads a
recipe's files.
"""

from __future__ import annotations

from collections.abc import Mapping

from cloudtrain.declaration import declarations
from cloudtrain.issues import Issue
from cloudtrain.planning.selection import PlannedImage, planned_build, recipe_for, select_image
from cloudtrain.providers.docker.declaration import DECLARATION
from cloudtrain.settings import Settings


def image_of(
    image: str | Mapping[str, str], settings: Settings, *, gpu: bool
) -> tuple[PlannedImage, tuple[Issue, ...]]:
    """The image, by its name on this machine, and what is wrong with it.

    `auto`, and nothing said, is our own image.
    """
    selected = select_image(image, DECLARATION.name)
    at, address = selected
    if selected.is_build or address == "auto":
        recipe, problems = recipe_for(selected, settings, gpu=gpu)
        return planned_build(recipe), tuple(problems)
    scheme, colon, _ = address.partition(":")
    cloud = next(
        (each.name for each in declarations() if colon and scheme in each.image_schemes), None
    )
    if cloud:
        hint = f"an address for each: image: {{docker: auto, {cloud}: '{address}'}}"
        return PlannedImage(""), (Issue(at, f"{address} means something in {cloud} alone", hint),)
    return PlannedImage(address), ()
