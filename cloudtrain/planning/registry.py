"""Images in registries, and logins there. Pure."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field

TOKEN_USER = "00000000-0000-0000-0000-000000000000"  # noqa: S105
"""User name that Azure's registries expect with a token as the password."""

MANIFEST_TYPES = (
    "application/vnd.oci.image.index.v1+json",
    "application/vnd.docker.distribution.manifest.list.v2+json",
    "application/vnd.oci.image.manifest.v1+json",
    "application/vnd.docker.distribution.manifest.v2+json",
)
"""Media types of image manifests, for one architecture or several."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ResolvedImage:
    """Image of a run, looked up, or built and pushed, right before the start."""

    address: str
    """Address in the request: by digest if we pushed the image, else as planned."""
    planned: str
    """Address in the plan."""
    digest: str = ""
    """Digest of the image at that address, `sha256:…`; empty if unknown."""


@dataclass(frozen=True, slots=True)
class RegistryLogin:
    """A user name and a password or token for a registry; tokens expire after hours."""

    user: str
    password: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class RegistryImage:
    """An image that exists in a registry."""

    digest: str
    architectures: frozenset[str]
    """`amd64`, `arm64`; empty if unknown."""


def architectures(manifest: bytes | str, config: Callable[[str], bytes]) -> frozenset[str]:
    """Return the architectures of a manifest; empty if it is not an image's.

    `config`: loads a configuration by digest.
    """
    try:
        document = json.loads(manifest)
        if "manifests" in document:
            platforms = [entry.get("platform", {}) for entry in document["manifests"]]
            names = [entry.get("architecture") for entry in platforms if entry.get("os") == "linux"]
        else:
            names = [json.loads(config(document["config"]["digest"])).get("architecture")]
    except (ValueError, KeyError, TypeError, AttributeError):
        return frozenset()  # not an image; the pull will report it
    return frozenset(str(name) for name in names if name)
