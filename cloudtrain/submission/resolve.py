"""The image of a plan put in its place right before the start. What takes an engine or a registry is imported then."""

from __future__ import annotations

from cloudtrain.catalog.machines import architecture_of
from cloudtrain.images.reference import ResolvedImage, take_apart
from cloudtrain.images.selection import asked, is_build
from cloudtrain.planning import Plan
from cloudtrain.providers import Note, Progress


def resolve_image(plan: Plan, pushing: Progress | None = None, note: Note | None = None) -> ResolvedImage | None:
    """The image of a plan, in its place: built and pushed where it is new. None where a plan names none.

    `note` is told where an image that the spec names cannot be looked up from here.
    RefusedError when the image that the spec names is not in its registry, or not for the cloud's machines.
    """
    image, planned = plan.host.image, plan.host.image_address
    if not planned:
        return None
    if image is None or image.recipe is None:
        digest = ""
        if not plan.is_rehearsal and _is_named(plan):
            from cloudtrain.submission.registry import refuse_missing

            digest = refuse_missing(planned, architecture_of(plan.provider, plan.host.instances), note)
        return ResolvedImage(address=planned, planned=planned, digest=digest)
    from cloudtrain.submission.images import ready_here, ready_there

    recipe = image.recipe
    if planned == recipe.name:
        return ResolvedImage(address=ready_here(recipe), planned=planned)
    address = ready_there(recipe, planned, pushing)
    return ResolvedImage(address=address, planned=planned, digest=take_apart(address).reference)


def _is_named(plan: Plan) -> bool:
    """Whether the spec itself names an address in a registry, which a cloud is to pull from."""
    wish = asked(plan.spec.image, plan.provider)
    if plan.target.contract == "plain" or is_build(wish):
        return False
    is_own = wish[1].partition(":")[0] in plan.target.declaration.image_schemes
    return wish[1] == plan.target.image_address and not is_own
