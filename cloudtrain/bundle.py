"""Paths of the folders in the package: entrypoints/, infra/, docker/."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path


def bundled(name: str) -> Path:
    """Return the path of a bundled folder, in an installed package or a checkout."""
    package = Path(__file__).parent
    inside = package / "_bundle" / name
    # An editable install leaves a stale copy in site-packages, but loads the package from the checkout.
    if inside.is_dir():
        return inside

    return package.parent / name


def payload_files() -> Mapping[str, Path]:
    """Return the files of launcher and trainer by their path in the archive."""
    folder = bundled("entrypoints")
    above = f"{folder.as_posix()}/"
    files = {}
    for path in folder.rglob("*.py"):
        if "__pycache__" not in path.parts:
            files[path.as_posix().removeprefix(above)] = path

    return files
