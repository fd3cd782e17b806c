"""Packages of images: the clouds' and ours."""

from __future__ import annotations

import re
from typing import NamedTuple

from cloudtrain.bundle import bundled

USUAL = (
    "torch torchvision torchaudio triton numpy pillow filelock fsspec jinja2 networkx sympy"
    " typing-extensions requests tqdm pyyaml packaging psutil protobuf click scipy pandas"
    " scikit-learn matplotlib h5py setuptools six pip"
)
"""Packages of any cloud's PyTorch image. The list is generous: it only suppresses warnings."""

_PYTHON = {"cuda": "3.12", "cpu": "3.11"}
"""Python of our image's distribution: Ubuntu 24.04, Debian 12."""


class ImageContents(NamedTuple):
    """Packages of an image, by normalised names, and its version of torch; empty if unknown."""

    packages: frozenset[str]
    torch: str = ""
    python: str = ""
    """Version of Python, `3.12`; empty if unknown."""


def usual_contents(torch: str, python: str, more: str) -> ImageContents:
    """Return the packages of a cloud's image. `more`: names besides the usual ones."""
    return ImageContents(frozenset(f"{USUAL} {more}".split()), torch, python)


def our_cuda() -> tuple[int, ...]:
    """Return the version of CUDA of our image, from its lock file."""
    text = (bundled("docker") / "torch-cuda.txt").read_text(encoding="utf-8")
    locked = re.search(r"^cuda-toolkit==(\d+)\.(\d+)", text, re.MULTILINE)
    if locked is None:
        return ()

    return int(locked[1]), int(locked[2])


def our_contents(kind: str) -> ImageContents:
    """Return the packages of our image, `cuda` or `cpu`, from its lock files."""
    folder = bundled("docker")
    files = [folder / f"torch-{kind}.txt", folder / "requirements.txt"]
    text = "\n".join(file.read_text(encoding="utf-8") for file in files)
    locked = dict(re.findall(r"^([A-Za-z0-9._-]+)==([^\s;\\]+)", text, re.MULTILINE))
    names = {re.sub(r"[-_.]+", "-", name).lower(): version for name, version in locked.items()}

    return ImageContents(
        frozenset({*names, "pip", "setuptools"}), names.get("torch", ""), _PYTHON[kind]
    )
