"""Which packages an image brings, as far as it is known without it: our own by its lock files, a
provider's by name.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from cloudtrain.bundle import bundled

USUAL = (
    "torch torchvision torchaudio triton numpy pillow filelock fsspec jinja2 networkx sympy"
    " typing-extensions requests tqdm pyyaml packaging psutil protobuf click scipy pandas"
    " scikit-learn matplotlib h5py setuptools six pip"
)
"""What every cloud's own PyTorch image holds: rather too much, since it only keeps warnings back.
"""

_PYTHON = {"cuda": "3.12", "cpu": "3.11"}
"""That of the distribution which our own image is built on: Ubuntu 24.04, Debian 12."""


@dataclass(frozen=True, slots=True)
class ImageContents:
    """Packages of an image, by normalised names, and its version of torch; empty where that is not
    known.
    """

    packages: frozenset[str]
    torch: str = ""
    python: str = ""
    """Its version of Python, `3.12`; empty where that is not known."""


def usual_contents(torch: str, python: str, more: str) -> ImageContents:
    """What a cloud's own image with these versions brings. `more`: names of packages besides the
    usual ones.
    """
    return ImageContents(frozenset(f"{USUAL} {more}".split()), torch, python)


def our_contents(kind: str) -> ImageContents:
    """What our own image brings, `cuda` or `cpu`: what its lock files name."""
    folder = bundled("docker")
    text = "\n".join(
        (folder / name).read_text(encoding="utf-8")
        for name in (f"torch-{kind}.txt", "requirements.txt")
    )
    locked = dict(re.findall(r"^([A-Za-z0-9._-]+)==([^\s;\\]+)", text, re.MULTILINE))
    names = {re.sub(r"[-_.]+", "-", name).lower(): version for name, version in locked.items()}
    return ImageContents(
        frozenset({*names, "pip", "setuptools"}), names.get("torch", ""), _PYTHON[kind]
    )
