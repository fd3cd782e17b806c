"""Packages of this machine's Python, some of which no job may replace. Standard library only.

An image is chosen for its torch with the matching libraries of CUDA and Triton. Another torch takes
gigabytes and may not work with the machine's driver.
"""

from __future__ import annotations

import os
import platform
import re
import subprocess
import sys
import sysconfig
from collections.abc import Iterable, Mapping
from hashlib import sha256
from pathlib import Path
from urllib.parse import unquote

from cloudtrain_wire.built_for_torch import BUILT_FOR_TORCH, satisfies
from cloudtrain_wire.requirement_files import Requested, Requirement, normalised

_OF_TORCH = re.compile(r"nvidia-|cuda-|triton$|pytorch-triton")
"""Names of torch's own requirements."""

_FOR_CUDA = re.compile(r"nvidia-[\w-]+-cu\d\d$")
"""Name of a CUDA library, as `pip freeze` lists it for another torch."""

_LAYOUT = "4"
"""Version of the layout; a new one retires the environments of earlier versions."""


def site_folders() -> list[str]:
    """Return the folders of this Python's installed packages, in the order of its path."""
    folders = []
    for path in sys.path:
        if Path(path).name in ("site-packages", "dist-packages") and Path(path).is_dir():
            folders.append(path)

    return folders


def held_packages() -> dict[str, str]:
    """Return normalised name -> version of the packages that stay; empty without torch."""
    version = _version("torch")
    if not version:
        return {}

    from importlib import metadata  # slow to import

    names = []
    for text in metadata.requires("torch") or ():
        name = normalised(re.split(r"[^A-Za-z0-9._-]", text)[0])
        if _OF_TORCH.match(name):
            names.append(name)

    names += BUILT_FOR_TORCH
    held = {"torch": version}
    for name in names:
        version = _version(name)
        if version:
            held[name] = version

    return held


def _version(name: str) -> str:
    from importlib import metadata

    try:
        return metadata.version(name) or ""
    except metadata.PackageNotFoundError:
        return ""


def without_held(
    requested: Requested, held: Mapping[str, str]
) -> tuple[list[Requirement], list[str]]:
    """Drop requirements of held packages; return the others and warnings about conflicts."""
    requirements = []
    warnings = []

    for requirement in requested.requirements:
        if held and requirement.name not in held and _FOR_CUDA.match(requirement.name):
            continue  # belongs to another torch

        if requirement.name not in held:
            requirements.append(requirement)
        elif not requirement.constraint and not satisfies(held[requirement.name], requirement):
            warnings.append(
                f"{requirement.place} asks for {requirement.shown}, but this image has {requirement.name}"
                f" {held[requirement.name]}, which stays (to replace it, set dependencies:"
                " {replace_torch: true})"
            )

    return requirements, warnings


def platform_name() -> str:
    """Return a name such as `Python 3.12 on Linux x86_64`."""
    version = f"{sys.version_info[0]}.{sys.version_info[1]}"
    return f"Python {version} on {platform.system()} {platform.machine()}"


def environment_digest(lines: Iterable[str], folder: Path) -> str:
    """Return the name of an environment: a digest of its requirements, its folder and its base.

    The base is the interpreter, its ABI and C library, and every package below the environment. A
    change of any of them gives another name.
    """
    below = [
        _LAYOUT,
        str(folder),
        sys.prefix,
        sys.version,
        sysconfig.get_platform(),
        " ".join(platform.libc_ver()),
    ]
    below += [str(sysconfig.get_config_var("SOABI")), str(sys.base_prefix)]
    for site in site_folders():
        below.append(site)
        below += sorted(entry.name for entry in Path(site).glob("*-info"))

    below.append("--")
    text = "\n".join([*below, *lines])

    return sha256(text.encode("utf-8", "surrogateescape")).hexdigest()[:24]


def index_settings(environ: Mapping[str, str]) -> str:
    """Return a digest of pip's settings, which may name another package index.

    Never show or store them: addresses may hold passwords.
    """
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "config", "list"]
    settings = subprocess.run(command, env=dict(environ), capture_output=True, check=False).stdout
    return sha256(settings).hexdigest()


def uses_files_of(source: Path, requested: Requested, environ: Mapping[str, str]) -> bool:
    """Return whether options, wheels or pip's settings name files of the source.

    A digest has their names, and not what is in them.
    """
    texts = [*requested.options, *(line.wheel for line in requested.to_install)]
    texts += [value for name, value in environ.items() if name.startswith("PIP_")]

    for word in re.split(r"[\s=]+", " ".join(texts)):
        scheme, _, rest = word.partition("://")
        name = unquote(rest) if scheme == "file" else word
        path = (source / name).resolve()
        if word and path.is_relative_to(source) and os.path.exists(path):  # noqa: PTH110  (no error)
            return True

    return False
