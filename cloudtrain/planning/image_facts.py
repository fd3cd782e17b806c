"""Facts in an image's name: its Python, its CUDA or ROCm, and the processors it is built for. Pure.

Names are AWS's, Microsoft's and other makers': `py38`, `python:3.11`, `cu124`, `cuda12.6`. AWS's
short names say no CUDA; the table `dlc.csv` has it.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from cloudtrain.catalog import registry_accounts, table
from cloudtrain.planning.reference import ECR

Version = tuple[int, ...]

_PYTHON = re.compile(r"(?<![a-z0-9])py(?:thon)?[-_:]?([23])[._]?(\d{1,2})(?!\d)")
_CUDA = re.compile(r"(?<![a-z0-9])(?:cuda[-_:]?|cu(?=\d{2}))(\d{2})[._]?(\d?)(?!\d{2})")
_ROCM = r"(?<![a-z0-9])rocm(?![a-z])"
_CPU = r"(?<![a-z0-9])cpu(?![a-z0-9])"
_DLC = r"/pytorch-training:(\d+\.\d+(?:\.\d+)?)-gpu\b"
_AMD64 = r"(?<![a-z0-9])(amd64|x86[-_]64)(?![a-z0-9])"
_ARM64 = r"(?<![a-z0-9])(arm64|aarch64)(?![a-z0-9])"
_CURATED = ("azureml:azureml-", "azureml://registries/azureml/", "mcr.microsoft.com/azureml/")
"""Beginnings of the names of Microsoft's own environments and images, all built for amd64."""

CUDA_RANGES: tuple[tuple[Version, Version, Version], ...] = (
    ((13, 0), (7, 5), (12, 1)),
    ((12, 9), (5, 0), (12, 1)),
    ((12, 8), (5, 0), (12, 0)),
    ((12, 0), (5, 0), (9, 0)),
    ((11, 8), (3, 5), (9, 0)),
    ((11, 1), (3, 5), (8, 6)),
    ((11, 0), (3, 5), (8, 0)),
    ((10, 0), (3, 0), (7, 5)),
)
"""From this CUDA on -> the oldest and the newest compute capability that it has code for.

After NVIDIA's release notes of CUDA 10.0 to 13.0; PyTorch's builds have no more than these.
"""


class ImageFacts(NamedTuple):
    """Known facts of an image."""

    python: Version = ()
    """Version of Python, `(3, 8)`; empty if unknown."""
    kind: str = ""
    """cuda, rocm or cpu; empty if unknown."""
    cuda: Version = ()
    """Version of CUDA, perhaps without its minor number; empty if unknown."""
    architecture: str = ""
    """amd64 or arm64; empty if unknown, or for several."""

    @property
    def capabilities(self) -> tuple[Version, Version] | None:
        """The oldest and the newest compute capability with code in it; None if unknown."""
        highest = (*self.cuda, 99)[:2]  # of CUDA 12 alone, the last
        for begin, oldest, newest in CUDA_RANGES:
            if self.cuda and highest >= begin:
                return oldest, newest

        return None


def has_code_for(facts: ImageFacts, capability: Version) -> bool:
    """Return whether an image's CUDA may have code for a GPU; True if that is unknown.

    Code for one compute capability runs on later ones of the same major number.
    """
    if facts.capabilities is None:
        return True

    oldest, newest = facts.capabilities
    return oldest <= capability and capability[0] <= newest[0]


def container_for(capability: Version) -> str:
    """Return the newest container of AWS with code for a GPU: `dlc:pytorch-2.8`; "" for none."""
    for row in table("dlc"):
        cuda = tuple(int(number) for number in row["cuda"].split("."))
        if has_code_for(ImageFacts(cuda=cuda), capability):
            return f"dlc:pytorch-{row['version'].rpartition('.')[0]}"

    return ""


def facts_by_name(address: str) -> ImageFacts:
    """Return what an address or the name of an environment says. A tag counts before the rest."""
    name = address.partition("@sha256:")[0].lower()
    folder, _, last = name.rpartition("/")
    parts = (last.partition(":")[2], last, folder)

    cuda = _cuda(name, parts)
    kind = ""
    if cuda:
        kind = "cuda"
    elif re.search(_ROCM, name):
        kind = "rocm"
    elif re.search(_CPU, last):
        kind = "cpu"

    python: Version = ()
    if match := _first(_PYTHON, parts):
        python = int(match[1]), int(match[2])

    return ImageFacts(python, kind, cuda, _architecture(name))


def _cuda(name: str, parts: tuple[str, ...]) -> Version:
    container = re.search(_DLC, name)
    if match := _first(_CUDA, parts):
        return tuple(int(number) for number in match.groups() if number)
    if match := re.search(r"(?:^|/)cuda:(\d+)\.(\d+)", name):
        return int(match[1]), int(match[2])
    if container is None:
        return ()

    for row in table("dlc"):
        if container[1] in (row["version"], row["version"].rpartition(".")[0]):
            return tuple(int(number) for number in row["cuda"].split("."))

    return ()


def _architecture(name: str) -> str:
    if re.search(_ARM64, name):
        return "arm64"

    registry = ECR.fullmatch(name)
    is_aws = registry is not None and registry[1] in registry_accounts()
    if is_aws or name.startswith(_CURATED) or re.search(_AMD64, name):
        return "amd64"

    return ""


def _first(pattern: re.Pattern[str], parts: tuple[str, ...]) -> re.Match[str] | None:
    """Return the first match in the parts, in their order."""
    for part in parts:
        if match := pattern.search(part):
            return match

    return None
