"""Where the folders are that the package carries: entrypoints/, infra/, docker/."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from importlib import import_module
from importlib.machinery import ModuleSpec
from importlib.util import module_from_spec
from pathlib import Path
from types import ModuleType


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


def launcher_module(name: str) -> ModuleType:
    """A module of the launcher that this package shares, such as `events`; it is loaded under a
    name of its own.

    Those files are sent with the job, so that they cannot import from this package, and a job may
    bring those of another version. Only what imports its neighbours alone, by relative imports, can
    be shared.
    """
    for package in ("", *(f".{part}" for part in name.split(".")[:-1])):
        spec = ModuleSpec(f"cloudtrain._launcher{package}", None, is_package=True)
        folder = bundled("entrypoints") / "cloudtrain_launcher" / package.lstrip(".")
        spec.submodule_search_locations = [str(folder)]
        sys.modules.setdefault(spec.name, module_from_spec(spec))
    return import_module(f"cloudtrain._launcher.{name}")
