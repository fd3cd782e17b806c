"""Packages that are built for one torch, and the versions that a requirement allows."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from cloudtrain_wire.requirement_files import Requirement

BUILT_FOR_TORCH = ("torchvision", "torchaudio")
"""Packages whose compiled code fits one version of torch, so that the image's versions stay."""


def satisfies(version: str, requirement: Requirement) -> bool:
    """Return whether a version satisfies a requirement; True if nothing here can compare them."""
    from importlib import import_module

    packaging: Any = None
    for name in ("pip._vendor.packaging.requirements", "packaging.requirements"):
        with suppress(ImportError):
            packaging = import_module(name)

    if packaging is None:
        return True

    try:
        wanted = packaging.Requirement(requirement.shown)
    except packaging.InvalidRequirement:
        return False

    return bool(wanted.specifier.contains(version, prereleases=True))
