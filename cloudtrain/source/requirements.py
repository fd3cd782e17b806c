"""Requirements of the source folder, read as the launcher reads them on the nodes."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from cloudtrain.errors import SourceError
from cloudtrain_launcher.packages import lock_file, requirement_files
from cloudtrain_launcher.packages.requirement_files import Requested as Requested
from cloudtrain_launcher.packages.requirement_files import Requirement as Requirement

CONDA_FILES = ("environment.yml", "environment.yaml", "conda.yml", "conda.yaml")
"""Files of the source folder with packages for conda, which are not installed."""


def requested_by(root: Path, file: str) -> Requested:
    """Return the requirements of a file. Raise SourceError if it cannot be read."""
    try:
        return lock_file.read_requested(root, file)
    except requirement_files.InvalidRequirements as error:
        hint = (
            "dependencies: none in job.yaml installs nothing; dependencies: FILE names another file"
        )
        raise SourceError(str(error), hint=hint) from None
    except OSError as error:
        raise SourceError(f"{file} cannot be read: {error.strerror}") from None


def requested_list(packages: Collection[str]) -> Requested:
    """Return the requirements of a list in job.yaml."""
    return requirement_files.requested_list(packages)


def automatic_file(root: Path) -> str:
    """Return the requirements file of a folder that applies by default; empty for none."""
    return find_requirements(
        root, [name for name in requirement_files.AUTOMATIC if (root / name).is_file()]
    )


def find_requirements(root: Path, paths: Collection[str]) -> str:
    """Return the requirements file that applies by default; empty for none.

    `paths`: content of the archive.
    """
    for name in requirement_files.AUTOMATIC:
        if name in paths and requested_by(root, name).to_install:
            return str(name)
    return ""


def hide_passwords(text: str) -> str:
    """Return a requirement with `***` instead of user names and passwords."""
    return str(requirement_files.hide_passwords(text))
