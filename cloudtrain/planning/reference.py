"""Parts of an image's address: registry, repository, tag or digest. Pure."""

from __future__ import annotations

import re
from typing import NamedTuple

_AWS = (
    r"amazonaws\.(?:com|com\.cn|eu)|c2s\.ic\.gov|sc2s\.sgov\.gov|cloud\.adc-e\.uk|csp\.hci\.ic\.gov"
)
"""Domains of all partitions: a registry with such a name would receive a login."""

ECR = re.compile(rf"(\d{{12}})\.dkr\.ecr(?:-fips)?\.([a-z0-9-]+)\.({_AWS})/.+")
"""Address in a registry of AWS: account, region, domain."""

ACR = re.compile(r"[a-z0-9]+(-[a-z0-9]+)?(\.[a-z0-9]+\.geo)?\.azurecr\.(io|cn|us)")
"""Host of a registry of Azure: `name`, `name-hash` with a label, `name.region.geo`."""

DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
DOCKER_HUB = "docker.io"


class Address(NamedTuple):
    """Parts of an image's address, by the distribution specification."""

    registry: str
    """Host and port; Docker Hub's by default."""
    repository: str
    """Path in the registry: `library/python`, `team/train`."""
    reference: str
    """Tag, or `sha256:…`."""


def parse_address(text: str) -> Address:
    """Split an address. The part before the first slash is a registry if it looks like a host."""
    name, _, digest = text.partition("@")
    head, slash, remainder = name.partition("/")
    is_host = bool(slash) and ("." in head or ":" in head or head == "localhost")
    if is_host:
        registry = head
        path = remainder
    else:
        registry = DOCKER_HUB
        path = name

    path, _, tag = path.partition(":")
    if registry == DOCKER_HUB and "/" not in path:
        path = f"library/{path}"
    return Address(registry, path, digest or tag or "latest")


def without_tag(text: str) -> str:
    """Return an address without tag and digest: `registry:5000/team/train`."""
    name = text.partition("@")[0]
    folder, slash, last = name.rpartition("/")
    return folder + slash + last.partition(":")[0]


def is_loopback(registry: str) -> bool:
    """Return whether a registry is on this machine, where engines use plain HTTP."""
    return re.fullmatch(r"(127\.[\d.]+|localhost|\[::1\])(:\d+)?", registry) is not None
