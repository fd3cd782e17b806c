"""Reader of `dependencies`: packages for the job in addition to its image."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

from cloudtrain.errors import did_you_mean
from cloudtrain.spec.fields import FieldError, expect, read_strings, read_text
from cloudtrain.spec.yaml_document import kind_of

OFF = "none"
CONDA_WAY = (
    "the nodes do not run conda: list pip packages in requirements.txt; put conda packages into an"
    " image (image: {build: Dockerfile}) or an environment of Azure ML (image: {azure:"
    " 'azureml:NAME@latest'})"
)
_FILES = (".txt", ".in", ".toml", "uv.lock")
_KEYS = ("file", "packages", "vendor", "replace_torch", "python")


@dataclass(frozen=True, slots=True)
class Dependencies:
    """The field `dependencies`. Empty means: use a requirements file of the source folder."""

    file: str | None = None
    """Path of a file below the source folder."""
    packages: tuple[str, ...] = ()
    """Requirements, each as a line of requirements.txt."""
    off: bool = False
    """True if the job installs no packages at all."""
    vendor: bool = False
    """True if submit downloads the wheels for nodes without a package index."""
    replace_torch: bool = False
    """True if requirements may replace the image's torch and its extensions."""
    python: str | None = None
    """Python version of the image, `3.12`, for downloaded wheels."""

    @property
    def is_automatic(self) -> bool:
        """True if a file of the source folder decides."""
        return not (self.off or self.file or self.packages)


def read_dependencies(value: Any) -> Dependencies:
    """Read `none`, a file, a list of requirements, or a mapping."""
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
            "conflicts with file: both choose the packages", "keep one of them", at=("packages",)
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
        raise FieldError(f"{name} is a conda environment, which pip cannot read", CONDA_WAY)
    if not name.endswith(_FILES):
        hint = (
            f"for a package, write a list: dependencies: [{name}]"
            if name
            else "write none for no packages"
        )
        raise FieldError(f"{name!r} is not a requirements file, pyproject.toml or uv.lock", hint)
    if path.is_absolute() or ".." in path.parts:
        raise FieldError(
            f"{name!r} is not in the source folder", "write a path relative to the source folder"
        )
    return str(path)


def _packages(value: Any) -> tuple[str, ...]:
    packages = read_strings(value)
    if not packages:
        raise FieldError("is an empty list", f"for no packages, write dependencies: {OFF}")
    for number, text in enumerate(packages):
        if re.search(r"://[^/@\s]+@", text) and "${" not in text:
            hint = "write ${NAME} instead, and set NAME under secrets"
            raise FieldError(
                "contains a password, which the run folder would store", hint, at=(number,)
            )
        if text.endswith(_FILES) or text.startswith(("-r", "-c", "--requirement", "--constraint")):
            raise FieldError(
                f"{text!r} is a file",
                f"for a file, write no list: dependencies: {text.split()[-1]}",
                at=(number,),
            )
        if not re.match(r"--?[a-z]|[A-Za-z0-9.]", text) or "\n" in text:
            raise FieldError(
                f"{text!r} is not a requirement",
                "write a line of requirements.txt, such as einops==0.8.1",
                at=(number,),
            )
    return packages
