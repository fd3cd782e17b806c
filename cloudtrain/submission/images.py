"""Makes the image of a job ready: looks it up, builds it if it is new, pushes it to where the job
will pull it from.

Code that needs an engine or a registry is imported when it is used: most submits need neither.
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
"""A registry may take that long to answer while it stores a layer of gigabytes."""


def resolve_image(
    plan: Plan, pushing: Progress | None = None, note: Note | None = None
) -> ResolvedImage | None:
    """The image of a plan, in its place: built and pushed where it is new. None where a plan names
    none.

    `note` gets a message where an image that the spec names cannot be looked up from here.
    RefusedError when the image that the spec names is not in its registry, or not for the cloud's
    machines.
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
    """The name of a recipe's image on this machine; it is built if it is not there."""
    from cloudtrain.submission.build import build

    return recipe.name if _is_local(recipe) else build(recipe)


def ensure_pushed(
    recipe: Recipe,
    address: str,
    progress: Progress | None = None,
    *,
    again: bool = False,
    options: Sequence[str] = (),
) -> str:
    """The address by digest of a recipe's image in a registry: `repository@sha256:…`.

    `address` ends in the recipe's tag. What is there already is neither built nor pushed, unless it
    is wanted `again`.
    """
    from cloudtrain.providers.docker.connect import docker_engine
    from cloudtrain.submission.build import build
    from cloudtrain.submission.registry import login_for

    pushed = None if again else _digest_in_registry(address)
    if pushed:
        return f"{without_tag(address)}@{pushed}"
    if again or not _is_local(recipe):
        build(recipe, options=options)
    login = login_for(parse_address(address).registry)
    with docker_engine(PUSH_SECONDS) as docker:
        digest = docker.push(recipe.name, address, login, progress)
    return f"{without_tag(address)}@{digest}"


def is_named(spec: JobSpec, target: Target) -> bool:
    """Whether the spec itself names an address in a registry, which a cloud is to pull from."""
    selected = select_image(spec.image, target.provider)
    if target.contract == "plain" or selected.is_build:
        return False
    is_own = selected.text.partition(":")[0] in target.declaration.image_schemes
    return selected.text == target.image_address and not is_own


def _digest_in_registry(address: str) -> str | None:
    """None where it is not there. A registry that cannot be read may take a push, or say better why
    not.
    """
    from cloudtrain.submission.registry import inspect_image

    try:
        found = inspect_image(address)
    except CloudError:
        return None
    return found.digest if found else None


def _is_local(recipe: Recipe) -> bool:
    from cloudtrain.providers.docker.connect import docker_engine

    with docker_engine() as docker:
        return docker.image_architecture(recipe.name) is not None
