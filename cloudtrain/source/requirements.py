"""What the source folder asks to be installed, read as the launcher reads it on the nodes. Reads
only the disk.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path

from cloudtrain.errors import SourceError
from cloudtrain_launcher.packages import image, requirement_files, source_files
from cloudtrain_launcher.packages import index_settings as index
from cloudtrain_launcher.packages.requirement_files import Requested as Requested
from cloudtrain_launcher.packages.requirement_files import Requirement as Requirement

CONDA_FILES = ("environment.yml", "environment.yaml", "conda.yml", "conda.yaml")
"""Files of the source folder that ask for packages in a way that is not followed here."""


def requested_by(root: Path, file: str) -> Requested:
    """What one file asks for. SourceError when it cannot be read."""
    try:
        return source_files.read_requested(root, file)
    except requirement_files.InvalidRequirements as error:
        hint = (
            "dependencies: none in job.yaml installs nothing; dependencies: FILE names another file"
        )
        raise SourceError(str(error), hint=hint) from None
    except OSError as error:
        raise SourceError(f"{file} cannot be read: {error.strerror}") from None


def requested_list(packages: Collection[str]) -> Requested:
    """What a list in job.yaml asks for."""
    return requirement_files.requested_list(packages)


def automatic_file(root: Path) -> str:
    """The file of a folder that asks for packages without being named; empty for none."""
    return find_requirements(
        root, [name for name in requirement_files.AUTOMATIC if (root / name).is_file()]
    )


def find_requirements(root: Path, paths: Collection[str]) -> str:
    """The file that asks for packages without being named; empty for none. `paths`: what is in the
    archive.
    """
    for name in requirement_files.AUTOMATIC:
        if name in paths and requested_by(root, name).to_install:
            return str(name)
    return ""


def satisfies(version: str, requirement: Requirement) -> bool:
    """Whether a version is what a requirement asks for."""
    return image.satisfies(version, requirement)


def index_settings(environ: Mapping[str, str], root: Path) -> list[str]:
    """Settings of this machine that say where packages come from, for a digest; they may hold
    passwords.
    """
    return list(index.index_settings(environ, root))


def hide_passwords(text: str) -> str:
    """A requirement with user names and passwords in its addresses replaced by `***`."""
    return str(requirement_files.hide_passwords(text))
