"""Versions of packages that are known not to work together, each with where that is written and
what to install.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Trouble:
    """Two packages that break each other: `first` below a version, beside `second` of a version or
    later.
    """

    first: str
    below: str
    second: str
    since: str
    what: str
    fix: str


TROUBLE = (
    Trouble(
        *("docker", "7.1", "requests", "2.32"),
        'no Docker engine is reached: "Not supported URL scheme http+docker"'
        " (docker/docker-py#3256)",
        'pip install "docker>=7.1"',
    ),
    Trouble(
        *("torch", "2.3", "numpy", "2"),
        'torch was built for numpy 1: "Numpy is not available" (pytorch/pytorch#107302)',
        'pip install "torch>=2.3", or "numpy<2"',
    ),
    Trouble(
        *("azure-ai-ml", "1.26.3", "marshmallow", "4"),
        "azure-ai-ml cannot be imported (Azure/azure-sdk-for-python#40565)",
        "pip install --upgrade azure-ai-ml",
    ),
)

PACKAGES = tuple(sorted({name for each in TROUBLE for name in (each.first, each.second)}))
"""Those whose versions are looked at."""


def found_trouble(versions: Mapping[str, str]) -> Iterator[tuple[str, Trouble]]:
    """Each trouble that these versions have, with the two packages in words. `versions`: by
    package.
    """
    for each in TROUBLE:
        first = versions.get(each.first)
        second = versions.get(each.second)
        if (
            first
            and second
            and release(first) < release(each.below)
            and release(second) >= release(each.since)
        ):
            yield f"{each.first} {first} with {each.second} {second}", each


def release(version: str) -> tuple[int, ...]:
    """`(2, 13, 0)` of `2.13.0+cu130`, to compare; what follows the numbers is left out."""
    found = re.match(r"\d+(\.\d+)*", version)
    return tuple(map(int, found[0].split("."))) if found else ()
