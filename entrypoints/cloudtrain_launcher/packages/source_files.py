"""What a file of the source asks for, in whichever of the known formats it is. Standard library
only.
"""

from __future__ import annotations

from pathlib import Path

from cloudtrain_launcher.packages.lock_file import read_lock
from cloudtrain_launcher.packages.requirement_files import (
    Requested,
    read_project,
    read_requirements,
)


def read_requested(folder: Path, file: str) -> Requested:
    """What a file of the source asks for, by its name. OSError, InvalidRequirements.

    All of a uv.lock, whatever its markers say: only a node knows which of them hold there.
    """
    name = Path(file).name
    if name == "uv.lock":
        return read_lock(folder, file)
    if name.endswith(".toml"):
        return read_project(folder, file)
    return read_requirements(folder, file)
