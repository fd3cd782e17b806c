"""Reader of `dependencies`: the packages that a job needs beside those of its image."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

from cloudtrain.issues import did_you_mean
from cloudtrain.spec.fields import FieldError, expect, read_strings, read_text
from cloudtrain.spec.yaml_document import kind_of

OFF = "none"
CONDA_WAY = (
    "conda is not run on the nodes: list what pip installs in requirements.txt; what only conda has"
    " belongs into an image (image: {build: Dockerfile}), or into an environment of Azure ML that"
    " image: {azure: 'azureml:NAME@latest'} names"
)
_FILES = (".txt", ".in", ".toml", "uv.lock")
_KEYS = ("file", "packages", "vendor", "replace_torch", "python")


@dataclass(frozen=True, slots=True)
class Dependencies:
    """What `dependencies` says. Without a file and packages, a file of the source folder that asks
    for any is taken.
    """

    file: str | None = None
    """A file below the source folder."""
    packages: tuple[str, ...] = ()
    """Requirements, as in a line of requirements.txt."""
    off: bool = False
    """Whether nothing is installed, whatever the source folder holds."""
    vendor: bool = False
    """Whether a submit downloads the wheels and sends them along, for nodes that reach no package
    index.
    """
    replace_torch: bool = False
    """Whether requirements may replace the image's torch, and what was built for it."""
    python: str | None = None
    """The image's version of Python, `3.12`, for which wheels are downloaded."""

    @property
    def is_automatic(self) -> bool:
        """Whether the source folder decides what is installed."""
        return not (self.off or self.file or self.packages)


def read_dependencies(value: Any) -> Dependencies:
    """`none`, a file, a list of requirements, or a mapping with one of them and what else is asked."""
    if isinstance(value, Dependencies):
        return value
    if value is None:
        return Dependencies()
    if isinstance(value, str):
        return Dependencies(off=True) if value == OFF else Dependencies(file=_file(value))
    if isinstance(value, (list, tuple)):
        return Dependencies(packages=_packages(value))
    if not isinstance(value, dict):
        raise FieldError(
            f"expected a file, a list of packages, a mapping or none, got {kind_of(value)}"
        )
    return _from_mapping(value)


def _from_mapping(value: Mapping[Any, Any]) -> Dependencies:
    for key in value:
        if key not in _KEYS:
            hint = CONDA_WAY if key in ("conda", "conda_file") else f"one of {', '.join(_KEYS)}"
            raise FieldError(f"unknown key{did_you_mean(str(key), _KEYS)}", hint, at=(key,))
    if "file" in value and "packages" in value:
        raise FieldError(
            "stands beside file: both say what is installed", "keep one of them", at=("packages",)
        )
    for key in ("vendor", "replace_torch"):
        if not isinstance(value.get(key, False), bool):
            raise FieldError(f"expected true or false, got {kind_of(value[key])}", at=(key,))
    python = read_text(value["python"]) if value.get("python") is not None else None
    if python is not None and not re.fullmatch(r"3\.\d{1,2}", python):
        raise FieldError(
            f"expected a version such as '3.12', got {kind_of(value['python'])}", at=("python",)
        )
    return Dependencies(
        file=_file(value["file"]) if "file" in value else None,
        packages=_packages(value["packages"]) if "packages" in value else (),
        vendor=value.get("vendor", False),
        replace_torch=value.get("replace_torch", False),
        python=python,
    )


def _file(value: Any) -> str:
    name = read_text(expect(value, str, "a file of the source folder")).strip()
    path = PurePosixPath(name)
    if path.suffix in (".yml", ".yaml"):
        raise FieldError(
            f"{name} is a conda environment, which no installer of Python packages reads", CONDA_WAY
        )
    if not name.endswith(_FILES):
        hint = (
            f"a package is written in a list: dependencies: [{name}]"
            if name
            else "none switches it off"
        )
        raise FieldError(f"{name!r} is not a requirements file, pyproject.toml or uv.lock", hint)
    if path.is_absolute() or ".." in path.parts:
        raise FieldError(
            f"{name!r} is not in the source folder", "write it relative to the source folder"
        )
    return str(path)


def _packages(value: Any) -> tuple[str, ...]:
    packages = read_strings(value)
    if not packages:
        raise FieldError("names no package", f"dependencies: {OFF} installs nothing")
    for number, text in enumerate(packages):
        if re.search(r"://[^/@\s]+@", text) and "${" not in text:
            hint = "write ${NAME} in its place, and name NAME under secrets"
            raise FieldError(
                "holds a password, which would be kept with the run", hint, at=(number,)
            )
        if text.endswith(_FILES) or text.startswith(("-r", "-c", "--requirement", "--constraint")):
            raise FieldError(
                f"{text!r} is a file",
                f"a file stands alone: dependencies: {text.split()[-1]}",
                at=(number,),
            )
        if not re.match(r"--?[a-z]|[A-Za-z0-9.]", text) or "\n" in text:
            raise FieldError(
                f"{text!r} is not a requirement",
                "as in a line of requirements.txt: einops==0.8.1",
                at=(number,),
            )
    return packages
