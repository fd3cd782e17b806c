"""Archives of installed packages, kept for the next attempt. Standard library only.

The first line of an archive holds the SHA-256 of the remaining bytes. A damaged archive is not
unpacked; the next attempt writes it again.
"""

from __future__ import annotations

import os
import tarfile
import zlib
from hashlib import sha256
from pathlib import Path
from typing import IO

from cloudtrain_launcher.packages import layered

MAX_ARCHIVE_BYTES = 4 * 2**30
"""Maximum size of an archived environment: installing a larger one is as fast."""

_LABEL = b"cloudtrain packages, sha256 "
_HEAD_BYTES = len(_LABEL) + 64 + 1
_BLOCK_BYTES = 1 << 20


def save(environment: Path, archive: Path) -> None:
    """Write an archive of an environment's packages, as a whole or not at all. Raise OSError.

    Write nothing if a valid archive exists or a job has changed the packages.
    """
    size = sum(path.lstat().st_size for path in environment.rglob("*"))
    if size > MAX_ARCHIVE_BYTES or is_whole(archive):
        return
    archive.parent.mkdir(parents=True, exist_ok=True)
    draft = archive.with_name(f"{archive.name}.{os.getpid()}.partial")
    try:
        with draft.open("wb+") as file:
            file.seek(_HEAD_BYTES)
            with tarfile.open(fileobj=file, mode="w:gz", compresslevel=1) as tar:
                for top in ("bin", "lib", layered.COMPLETE):
                    tar.add(environment / top, top, filter=_archived)
            file.seek(_HEAD_BYTES)
            head = _head(file)
            file.seek(0)
            file.write(head)
        if layered.is_unchanged(environment):  # jobs may be using it already
            draft.replace(archive)
    finally:
        draft.unlink(missing_ok=True)


def restore(environment: Path, archive: Path) -> bool:
    """Fill an empty environment from an archive. Return False if that is missing or damaged.

    OSError if the disk is full.
    """
    if not is_whole(archive):
        return False
    try:
        with archive.open("rb") as file:
            file.seek(_HEAD_BYTES)
            with tarfile.open(fileobj=file, mode="r|gz") as tar:
                safe = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
                tar.extractall(environment, **safe)  # type: ignore[arg-type]
    except (tarfile.TarError, EOFError, ValueError, zlib.error):
        return False
    return layered.contents(environment) is not None


def is_whole(archive: Path) -> bool:
    """Read the whole archive and return whether it is complete and undamaged."""
    try:
        with archive.open("rb") as file:
            head = file.read(_HEAD_BYTES)
            return head == _head(file)
    except OSError:
        return False


def _head(file: IO[bytes]) -> bytes:
    """Return the first line of an archive; hash the file from its current position."""
    digest = sha256()
    while block := file.read(_BLOCK_BYTES):
        digest.update(block)
    return _LABEL + digest.hexdigest().encode() + b"\n"


def _archived(item: tarfile.TarInfo) -> tarfile.TarInfo | None:
    """Leave out links, which `create` makes, and bytecode, which Python writes again."""
    skipped = item.issym() or item.name.endswith((f"/{layered.BELOW}", "/__pycache__"))
    return None if skipped else item
