"""Versions of packages that do not work together, with a source and what to install."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class KnownIncompatibility:
    """Two packages that break each other: `first` below a version, `second` from a version on."""

    first: str
    below: str
    second: str
    since: str
    problem: str
    fix: str


INCOMPATIBILITIES = (
    KnownIncompatibility(
        *("docker", "7.1", "requests", "2.32"),
        'no Docker engine is reached: "Not supported URL scheme http+docker"'
        " (docker/docker-py#3256)",
        'pip install "docker>=7.1"',
    ),
    KnownIncompatibility(
        *("torch", "2.3", "numpy", "2"),
        'torch was built for numpy 1: "Numpy is not available" (pytorch/pytorch#107302)',
        'pip install "torch>=2.3", or "numpy<2"',
    ),
    KnownIncompatibility(
        *("azure-ai-ml", "1.26.3", "marshmallow", "4"),
        "azure-ai-ml cannot be imported (Azure/azure-sdk-for-python#40565)",
        "pip install --upgrade azure-ai-ml",
    ),
)

PACKAGES = tuple(sorted({name for pair in INCOMPATIBILITIES for name in (pair.first, pair.second)}))
"""Packages with such versions."""


def found_incompatibilities(
    versions: Mapping[str, str],
) -> Iterator[tuple[str, KnownIncompatibility]]:
    """Yield the incompatibilities of these versions, each with a text that names both packages.

    `versions`: version by package.
    """
    for known_pair in INCOMPATIBILITIES:
        first = versions.get(known_pair.first)
        second = versions.get(known_pair.second)
        if not first or not second:
            continue

        is_first_old = release(first) < release(known_pair.below)
        is_second_new = release(second) >= release(known_pair.since)
        if is_first_old and is_second_new:
            yield f"{known_pair.first} {first} with {known_pair.second} {second}", known_pair


def release(version: str) -> tuple[int, ...]:
    """Return a comparable version: `(2, 13, 0)` for `2.13.0+cu130`."""
    numbers = re.match(r"\d+(\.\d+)*", version)
    return tuple(map(int, numbers[0].split("."))) if numbers else ()
