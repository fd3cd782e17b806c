"""Removing the images that were built on this machine and that nobody uses: a new content is a new image each time."""

from __future__ import annotations

import re
import time
from dataclasses import dataclass

from cloudtrain.images.recipe import KINDS, LOCAL
from cloudtrain.providers.docker.connect import docker_engine
from cloudtrain.submission.build import INPUTS_LABEL

_TAG = rf"(({'|'.join(KINDS)})-)?[0-9a-f]{{12}}"
"""Of the names that stand for a content: here, and in a registry that it was pushed to."""

_OURS = re.compile(rf"{LOCAL}:({_TAG}|building-[0-9a-f]+|{'|'.join(KINDS)})|.+/.+:{_TAG}")


@dataclass(frozen=True, slots=True)
class Removed:
    """One name of an image, and whether the image itself goes with it."""

    name: str
    id: str
    size: int
    goes: bool


def prune(age_seconds: float, *, dry_run: bool = False) -> list[Removed]:
    """Remove the names that we gave to images built longer ago than that; CloudError where no engine answers.

    An image that a container uses stays, and one that has a name of somebody else's keeps that.
    """
    found: list[Removed] = []
    with docker_engine() as engine:
        used = engine.images_in_use()
        for image in engine.images_with_label(INPUTS_LABEL):
            if image.id in used or image.created > time.time() - age_seconds:
                continue
            ours = [name for name in image.names if _OURS.fullmatch(name)]
            goes = len(ours) == len(image.names)
            found += [Removed(name, image.id, image.size, goes) for name in ours or ([image.id] if goes else [])]
        for each in found:
            if not dry_run:
                engine.remove_image(each.name)
    return found
