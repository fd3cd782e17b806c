"""Preparation of a job's image: look it up, build it if it is new, push it to its registry.

Code for engines and registries is imported at its first use: most submits need neither.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from cloudtrain.catalog.machines import architecture_of
from cloudtrain.errors import CloudError
from cloudtrain.planning.plan import Plan
from cloudtrain.planning.recipe import Recipe
from cloudtrain.planning.reference import ResolvedImage, parse_address, without_tag
from cloudtrain.planning.selection import select_image
from cloudtrain.planning.target import Target
from cloudtrain.providers import Note, Progress

if TYPE_CHECKING:
    from cloudtrain.spec.model import JobSpec

PUSH_SECONDS = 1800.0
"""Maximum time for a registry to store a layer of gigabytes."""


def resolve_image(
    plan: Plan, pushing: Progress | None = None, note: Note | None = None
) -> ResolvedImage | None:
    """Return the image of a plan, built and pushed if it is new, or None without one.

    `note` gets a message if the spec's image cannot be looked up from here. Raise RefusedError if
    it is not in its registry, or not for the cloud's machines.
    """
    image = plan.host.image
    planned = plan.host.image_address
    if not planned:
        return None
    if image is None or image.recipe is None:
        digest = ""
        if not plan.is_rehearsal and is_named(plan.spec, plan.target):
            from cloudtrain.submission.registry import require_image

            digest = require_image(
                planned, architecture_of(plan.provider, plan.host.instances), note
            )
        return ResolvedImage(address=planned, planned=planned, digest=digest)
    if planned == image.recipe.name:
        return ResolvedImage(address=ensure_local(image.recipe), planned=planned)
    address = ensure_pushed(image.recipe, planned, pushing)
    return ResolvedImage(address=address, planned=planned, digest=parse_address(address).reference)


def ensure_local(recipe: Recipe) -> str:
    """Return the name of a recipe's image on this machine. Build it if it is missing."""
    from cloudtrain.submission.build import build

    return recipe.name if _is_local(recipe) else build(recipe)


def ensure_pushed(
    recipe: Recipe,
    address: str,
    progress: Progress | None = None,
    *,
    rebuild: bool = False,
    options: Sequence[str] = (),
) -> str:
    """Return the address by digest of a recipe's image in a registry: `repository@sha256:…`.

    `address` ends in the recipe's tag. Build and push it only if it is missing there, or if
    `rebuild`.
    """
    from cloudtrain.providers.docker.connect import docker_engine
    from cloudtrain.submission.build import build
    from cloudtrain.submission.registry import login_for

    pushed = None if rebuild else _digest_in_registry(address)
    if pushed:
        return f"{without_tag(address)}@{pushed}"
    if rebuild or not _is_local(recipe):
        build(recipe, options=options)
    login = login_for(parse_address(address).registry)
    with docker_engine(PUSH_SECONDS) as docker:
        digest = docker.push(recipe.name, address, login, progress)
    return f"{without_tag(address)}@{digest}"


def is_named(spec: JobSpec, target: Target) -> bool:
    """Return whether the spec itself names an address in a registry that a cloud pulls from."""
    selected = select_image(spec.image, target.provider)
    if target.contract == "plain" or selected.is_build:
        return False
    is_own = selected.text.partition(":")[0] in target.declaration.image_schemes
    return selected.text == target.image_address and not is_own


def _digest_in_registry(address: str) -> str | None:
    """Return the digest in the registry, or None: a registry may accept a push without reading."""
    from cloudtrain.submission.registry import inspect_image

    try:
        image = inspect_image(address)
    except CloudError:
        return None
    return image.digest if image else None


def _is_local(recipe: Recipe) -> bool:
    from cloudtrain.providers.docker.connect import docker_engine

    with docker_engine() as docker:
        return docker.image_architecture(recipe.name) is not None
