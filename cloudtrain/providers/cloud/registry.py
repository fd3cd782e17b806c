"""What is known of an image in a registry, and who one is there: values that both clouds and the engine share."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field

ANYBODY = "00000000-0000-0000-0000-000000000000"
"""The name that goes with a token in place of a password, in registries of Azure."""

MANIFESTS = (
    "application/vnd.oci.image.index.v1+json",
    "application/vnd.docker.distribution.manifest.list.v2+json",
    "application/vnd.oci.image.manifest.v1+json",
    "application/vnd.docker.distribution.manifest.v2+json",
)
"""Media types of images, for one kind of processor or several."""


@dataclass(frozen=True, slots=True)
class Login:
    """A name and a password that a registry takes; for hours, not for ever."""

    user: str
    password: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class Found:
    """An image that a registry has."""

    digest: str
    architectures: frozenset[str]
    """`amd64`, `arm64`: those it is there for; empty where that is not known."""


def architectures(manifest: bytes | str, config: Callable[[str], bytes]) -> frozenset[str]:
    """The processors that an image is built for. `config` brings the configuration of that digest."""
    try:
        document = json.loads(manifest)
        if "manifests" in document:
            platforms = [entry.get("platform", {}) for entry in document["manifests"]]
            found = [each.get("architecture") for each in platforms if each.get("os") == "linux"]
        else:
            found = [json.loads(config(document["config"]["digest"])).get("architecture")]
    except (ValueError, KeyError, TypeError, AttributeError):
        return frozenset()  # of another kind than an image; whoever pulls it will say
    return frozenset(str(name) for name in found if name)
