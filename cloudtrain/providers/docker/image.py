"""The image of a run in containers: from the spec to an address. Reads a recipe's files."""

from __future__ import annotations

from collections.abc import Mapping

from cloudtrain.declaration import declarations
from cloudtrain.errors import Issue
from cloudtrain.planning.selection import PlannedImage, planned_build, recipe_for, select_image
from cloudtrain.providers.docker.declaration import DECLARATION
from cloudtrain.settings import Settings


def image_of(
    image: str | Mapping[str, str], settings: Settings, *, gpu: bool
) -> tuple[PlannedImage, tuple[Issue, ...]]:
    """Return the image, by its name on this machine, and its problems.

    Our own image is the default, and `auto`.
    """
    selected = select_image(image, DECLARATION.name)
    path, address = selected
    if selected.is_build or address == "auto":
        recipe, problems = recipe_for(selected, settings, gpu=gpu)
        return planned_build(recipe), tuple(problems)
    scheme, colon, _ = address.partition(":")
    providers = (declared.name for declared in declarations() if scheme in declared.image_schemes)
    cloud = next(providers, None) if colon else None
    if cloud:
        hint = f"an address for each: image: {{docker: auto, {cloud}: '{address}'}}"
        return PlannedImage(""), (Issue(path, f"{address} means something in {cloud} alone", hint),)
    return PlannedImage(address), ()
