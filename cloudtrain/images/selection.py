"""Which image a spec selects for one provider, and the recipe where it is one that we build. Reads
only the disk.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from cloudtrain.errors import SourceError
from cloudtrain.images.contents import ImageContents, our_contents
from cloudtrain.images.recipe import Recipe, our_recipe, recipe_of
from cloudtrain.issues import Issue, Keys

if TYPE_CHECKING:
    from cloudtrain.settings import Settings

CLOUD_PLATFORM = "linux/amd64"
"""What all machines of both clouds run but those with NVIDIA's own processors, whatever your own
machine is.
"""


@dataclass(frozen=True, slots=True)
class PlannedImage:
    """What a job runs in."""

    address: str
    """An address in a registry, a local name, or what else its provider reads; empty where it is
    not known.
    """
    recipe: Recipe | None = None
    """How it is built, where we build it. Its address ends in a tag then: the digest is known when
    it was pushed.
    """
    contents: ImageContents | None = field(default=None, compare=False, repr=False)
    """What it brings, where its provider knows that of its own image."""

    @property
    def known_contents(self) -> ImageContents | None:
        """What it brings; None for an image that is not known: somebody's own."""
        if self.recipe is None:
            return self.contents
        return our_contents(self.recipe.kind) if self.recipe.kind else None


class ImageSelection(NamedTuple):
    """What a spec selects for one provider."""

    path: Keys
    """The field that selects it."""
    text: str
    """`auto`, an address, or the path of a Dockerfile."""

    @property
    def is_build(self) -> bool:
        """Whether a Dockerfile is named, and not an address."""
        return self.path[-1] == "build"


def select_image(image: str | Mapping[str, str], provider: str) -> ImageSelection:
    """What `image:` says for a provider: a Dockerfile, the provider's entry, or `auto` where it has
    none.
    """
    if not isinstance(image, Mapping):
        return ImageSelection(("image",), image)
    if "build" in image:
        return ImageSelection(("image", "build"), image["build"])
    return ImageSelection(("image", provider), image.get(provider, "auto"))


def recipe_for(
    selected: ImageSelection, settings: Settings, *, gpu: bool, platform: str = ""
) -> tuple[Recipe | None, list[Issue]]:
    """The recipe of our own image (`auto`) or of the Dockerfile that was named, and what is wrong
    with it.
    """
    at, text = selected
    try:
        if not selected.is_build:
            return our_recipe(
                "cuda" if gpu else "cpu", settings.get("image.args") or (), platform
            ), []
        dockerfile = Path(settings.folder, text).absolute()
        if not dockerfile.is_file():
            return None, [
                Issue(
                    at,
                    f"there is no file {dockerfile}",
                    "the path counts from the folder of job.yaml",
                )
            ]
        args = (
            settings.get("image.build_args") or ()
        )  # what `image.args` name is ours: their BASE_IMAGE is another
        return recipe_of(dockerfile, args, platform, limit=settings.get("source_limit")), []
    except SourceError as error:
        return None, [Issue(at, error.message, error.hint)]


def planned_build(recipe: Recipe | None, repository: str = "") -> PlannedImage:
    """An image that we build: where it is to be, and from what."""
    if recipe is None:
        return PlannedImage("")
    return PlannedImage(f"{repository}:{recipe.tag}" if repository else recipe.name, recipe)
