"""What this machine's Python brings: its packages, and those among them that no job's requirements
replace.

Standard library only. torch, and with it the libraries of CUDA and Triton in the versions that it
was built for, are what an image is chosen for: another torch would be gigabytes, and may not run
with the machine's driver.
"""

from __future__ import annotations

import platform
import re
import sys
import sysconfig
from collections.abc import Callable, Iterable, Mapping
from hashlib import sha256
from importlib import metadata
from pathlib import Path
from typing import Any

from cloudtrain_launcher.packages.requirement_files import Requested, Requirement, normalised

_BUILT_FOR_TORCH = ("torchvision", "torchaudio")
"""Packages whose compiled code fits one version of torch: the image's own stay, too."""

_OF_TORCH = re.compile(r"nvidia-|cuda-|triton$|pytorch-triton")
"""Requirements of torch that belong to it."""

_FOR_CUDA = re.compile(r"nvidia-[\w-]+-cu\d\d$")
"""A library of CUDA, as a frozen list of packages names those of another torch."""


_LAYOUT = "2"
"""Changes when environments are made in another way: those of an earlier version are not taken
then.
"""


def site_folders() -> list[str]:
    """The folders of this Python's installed packages, in their order."""
    return [
        path
        for path in sys.path
        if Path(path).name in ("site-packages", "dist-packages") and Path(path).is_dir()
    ]


def held_packages() -> dict[str, str]:
    """Packages that stay as they are, by normalised name, with their versions; empty without torch."""
    version = _version("torch")
    if not version:
        return {}
    needed = [
        normalised(re.split(r"[^A-Za-z0-9._-]", text)[0])
        for text in metadata.requires("torch") or ()
    ]
    names = [name for name in needed if _OF_TORCH.match(name)] + list(_BUILT_FOR_TORCH)
    found = {name: _version(name) for name in names}
    return {"torch": version, **{name: text for name, text in found.items() if text}}


def _version(name: str) -> str:
    try:
        return metadata.version(name) or ""
    except metadata.PackageNotFoundError:
        return ""


def without_held(
    requested: Requested, held: Mapping[str, str]
) -> tuple[list[Requirement], list[str]]:
    """The requirements without those that name a package which stays, and a sentence for each that
    asks for another.
    """
    kept = []
    said = []
    for each in requested.requirements:
        if held and each.name not in held and _FOR_CUDA.match(each.name):
            continue  # of a torch that is not installed
        if each.name not in held:
            kept.append(each)
        elif not each.constraint and not satisfies(held[each.name], each):
            said.append(
                f"{each.place} asks for {each.shown}, and this image has {each.name}"
                f" {held[each.name]}, which stays (dependencies: {{replace_torch: true}} takes what"
                " the file says)"
            )
    return kept, said


def satisfies(version: str, requirement: Requirement) -> bool:
    """Whether a version is what a requirement asks for; where nothing here can compare them, only
    `==` is looked at.
    """
    packaging = packaging_module("requirements")
    if packaging is None:
        return requirement.exact in ("", version, version.partition("+")[0])
    try:
        return bool(
            packaging.Requirement(requirement.shown).specifier.contains(version, prereleases=True)
        )
    except packaging.InvalidRequirement:
        return False


def packaging_module(name: str) -> Any:
    """A module of `packaging`, or of the copy that pip brings; None without either."""
    from importlib import import_module

    for parent in ("packaging", "pip._vendor.packaging"):
        try:
            return import_module(f"{parent}.{name}")
        except ImportError:
            continue
    return None


def marker_reader() -> Callable[[str], bool] | None:
    """What evaluates environment markers for this Python; None where nothing does."""
    markers = packaging_module("markers")
    if markers is None:
        return None
    return lambda text: not text or bool(markers.Marker(text).evaluate({"extra": ""}))


def platform_name() -> str:
    """`Python 3.12 on Linux x86_64`."""
    version = f"{sys.version_info[0]}.{sys.version_info[1]}"
    return f"Python {version} on {platform.system()} {platform.machine()}"


def environment_digest(lines: Iterable[str], folder: Path) -> str:
    """The name of an environment: it stands for its requirements, where it is, and all that it is
    layered on.

    Those are the interpreter, its ABI and C library, and every package installed below the
    environment: one that is added or removed there later makes another environment.
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
        below += [site, *sorted(entry.name for entry in Path(site).glob("*-info"))]
    text = "\n".join([*below, "--", *lines])
    return sha256(text.encode("utf-8", "surrogateescape")).hexdigest()[:24]
