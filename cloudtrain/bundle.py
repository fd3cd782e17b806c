"""Where the folders are that the package carries: entrypoints/, infra/, docker/."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path


def bundled(name: str) -> Path:
    """One of those folders: inside an installed package, or beside it in a checkout."""
    package = Path(__file__).parent
    inside = package / "_bundle" / name
    # An editable install leaves a stale copy in site-packages; the package itself is the checkout's
    # then.
    return inside if inside.is_dir() else package.parent / name


def payload_files() -> Mapping[str, Path]:
    """The launcher and the shared trainer: their names below the archive's own folder, and their
    files.
    """
    folder = bundled("entrypoints")
    return {
        path.relative_to(folder).as_posix(): path
        for path in sorted(folder.rglob("*.py"))
        if "__pycache__" not in path.parts
    }
