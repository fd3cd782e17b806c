"""The image of a job made ready: built where it is new, pushed where the job will look for it, named by its digest."""

from __future__ import annotations

from collections.abc import Sequence

from cloudtrain.errors import CloudError
from cloudtrain.images.recipe import Recipe
from cloudtrain.images.reference import take_apart, without_tag
from cloudtrain.providers import Progress
from cloudtrain.providers.docker.connect import docker_engine
from cloudtrain.submission.build import build
from cloudtrain.submission.registry import login_for, look

PUSH_SECONDS = 1800.0
"""A registry may be silent that long while it takes in a layer of gigabytes."""


def ready_here(recipe: Recipe) -> str:
    """The name of a recipe's image on this machine; it is built if it is not there."""
    return recipe.name if _is_here(recipe) else build(recipe)


def ready_there(
    recipe: Recipe, address: str, progress: Progress | None = None, *, again: bool = False, options: Sequence[str] = ()
) -> str:
    """The address by digest of a recipe's image in a registry: `repository@sha256:…`.

    `address` ends in the recipe's tag. What is there already is neither built nor pushed, unless it is wanted `again`.
    """
    found = None if again else _there(address)
    if found:
        return f"{without_tag(address)}@{found}"
    if again or not _is_here(recipe):
        build(recipe, options=options)
    login = login_for(take_apart(address).registry)
    with docker_engine(PUSH_SECONDS) as docker:
        digest = docker.push(recipe.name, address, login, progress)
    return f"{without_tag(address)}@{digest}"


def _there(address: str) -> str | None:
    """Its digest in the registry. One that cannot be read may take a push all the same, or say better why not."""
    try:
        found = look(address)
    except CloudError:
        return None
    return found.digest if found else None


def _is_here(recipe: Recipe) -> bool:
    with docker_engine() as docker:
        return docker.image_architecture(recipe.name) is not None
