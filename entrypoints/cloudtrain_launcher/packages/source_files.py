"""Reader for a requirements file in any known format. Standard library only."""

from __future__ import annotations

from pathlib import Path

from cloudtrain_launcher.packages.lock_file import read_lock
from cloudtrain_launcher.packages.requirement_files import (
    Requested,
    read_project,
    read_requirements,
)


def read_requested(folder: Path, file: str) -> Requested:
    """Read a requirements file of the source. Raise OSError or InvalidRequirements.

    Return all of a uv.lock: only a node can evaluate its markers.
    """
    name = Path(file).name
    if name == "uv.lock":
        return read_lock(folder, file)
    if name.endswith(".toml"):
        return read_project(folder, file)
    return read_requirements(folder, file)
