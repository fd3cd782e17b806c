"""Selection of a spec's image for one provider, and the recipe of an image that we build."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from cloudtrain.catalog.machines import find_instance
from cloudtrain.errors import Issue, Keys, SourceError
from cloudtrain.planning.image_contents import ImageContents, our_contents
from cloudtrain.planning.recipe import Recipe, our_recipe, recipe_of
from cloudtrain.settings import variable_of

if TYPE_CHECKING:
    from cloudtrain.settings import Settings

CLOUD_PLATFORM = "linux/amd64"
"""Platform of all machines of both clouds, except those with NVIDIA's processors."""

_ROOT = "image.context_root"
_FROM_JOB = "the path counts from the folder of job.yaml"
_FABRIC_ARGS = {"efa": "WITH_EFA=1", "infiniband": "WITH_TOPOLOGY=1"}
"""Network between nodes -> argument of our image for it."""


@dataclass(frozen=True, slots=True)
class PlannedImage:
    """Image of a job."""

    address: str
    """Address in a registry, local name, or another name for the provider; empty if unknown."""
    recipe: Recipe | None = None
    """Recipe of an image that we build. Its address ends in a tag: a push makes the digest known."""
    contents: ImageContents | None = field(default=None, compare=False, repr=False)
    """Packages of a provider's image, if known."""

    @property
    def known_contents(self) -> ImageContents | None:
        """Packages of the image; None for an unknown image."""
        if self.recipe is None:
            return self.contents
        if not self.recipe.kind:
            return None

        return our_contents(self.recipe.kind)


class ImageSelection(NamedTuple):
    """Selection of a spec for one provider."""

    path: Keys
    """Field that selects it."""
    text: str
    """Text of the selection: `auto`, an address, or the path of a Dockerfile."""
    context: str = ""
    """Folder of a build, if the spec names one."""

    @property
    def is_build(self) -> bool:
        """True if the selection is a Dockerfile, not an address."""
        return self.path[-1] == "build"


def select_image(image: str | Mapping[str, str], provider: str) -> ImageSelection:
    """Return the selection of `image:`: a Dockerfile, the provider's entry, or `auto`."""
    if not isinstance(image, Mapping):
        return ImageSelection(("image",), image)
    if "build" in image:
        return ImageSelection(("image", "build"), image["build"], image.get("context", ""))
    return ImageSelection(("image", provider), image.get(provider, "auto"))


class ImageMachines(NamedTuple):
    """Machines that an image is for."""

    types: tuple[str, ...] = ()
    has_gpus: bool = False
    args: tuple[str, ...] = ()
    """Arguments of our image for the network between them."""


def image_machines(provider: str, types: tuple[str, ...], nodes: int, gpus: int) -> ImageMachines:
    """Return the machines that the image of a job is for. `gpus`: per node."""
    if nodes < 2 or not gpus:
        return ImageMachines(types, gpus > 0)

    rows = [find_instance(provider, name) for name in types]
    args = {_FABRIC_ARGS[row.network] for row in rows if row and row.network in _FABRIC_ARGS}
    return ImageMachines(types, has_gpus=True, args=tuple(sorted(args)))


def recipe_for(
    selected: ImageSelection,
    settings: Settings,
    *,
    gpu: bool,
    platform: str = "",
    machine_args: Sequence[str] = (),
) -> tuple[Recipe | None, list[Issue]]:
    """Return the recipe of our image (`auto`) or of the named Dockerfile, and its issues.

    `machine_args`: arguments of our image for the machines, before the settings' arguments.
    """
    at = selected.path
    try:
        if not selected.is_build:
            our_args = list(machine_args)
            our_args += settings.get("image.args") or ()
            return our_recipe("cuda" if gpu else "cpu", our_args, platform), []

        dockerfile = Path(settings.folder, selected.text).absolute()
        if not dockerfile.is_file():
            return None, [Issue(at, f"there is no file {dockerfile}", _FROM_JOB)]
        if wrong := context_issues(selected, settings):
            return None, wrong

        context = None
        if selected.context:
            context = Path(os.path.normpath(Path(settings.folder, selected.context).absolute()))

        # What `image.args` name is ours: their BASE_IMAGE is another.
        args = settings.get("image.build_args") or ()
        limit = settings.get("source_limit")
        return recipe_of(dockerfile, args, platform, limit=limit, context=context), []
    except SourceError as error:
        return None, [Issue(at, error.message, error.hint)]


def context_issues(selected: ImageSelection, settings: Settings) -> list[Issue]:
    """Return the issue with the folder of a build: missing, or outside the user's own root.

    A job of somebody else must not build the user's other files into an image.
    """
    at = ("image", "context")
    if not selected.context:
        return []

    folder = Path(settings.folder, selected.context).absolute()
    if not folder.is_dir():
        return [Issue(at, f"there is no folder {folder}", _FROM_JOB)]

    root = Path(settings.folder)
    if own_root := settings.get(_ROOT):
        root = Path(settings.folder, own_root)

    if not folder.resolve().is_relative_to(root.resolve()):
        message = f"{folder} is outside {root.absolute()}, and a build may read all of it"
        return [Issue(at, message, f"if that is meant: {variable_of(_ROOT)}={folder.resolve()}")]

    return []


def planned_build(recipe: Recipe | None, repository: str = "") -> PlannedImage:
    """Return an image that we build, with its address and recipe."""
    if recipe is None:
        return PlannedImage("")
    if not repository:
        return PlannedImage(recipe.name, recipe)

    return PlannedImage(f"{repository}:{recipe.tag}", recipe)
