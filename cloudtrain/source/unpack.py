"""Extraction of a source archive of this machine into an empty folder."""

from __future__ import annotations

import gzip
import os
import shutil
import tarfile
import time
from pathlib import Path

from cloudtrain.errors import SourceError, StorageError
from cloudtrain.runs.files import FOLDER_MODE, make_private_folder
from cloudtrain.source.extract import DAMAGED, Header

_BLOCK = 1 << 20


def unpack(archive: Path, folder: Path) -> None:
    """Extract files, folders and links into `folder`, which is made, or must be empty.

    Raise SourceError if the archive is damaged or has an entry that leads outside, and StorageError
    if the disk refuses; `folder` is left empty then.
    """
    make_private_folder(folder)
    if any(folder.iterdir()):
        raise SourceError(f"cannot unpack into {folder}: it is not empty", hint="name a new folder")
    try:
        _extract(archive, folder)
    except BaseException as error:
        shutil.rmtree(folder, ignore_errors=True)
        if isinstance(error, DAMAGED):
            raise SourceError(
                f"the source archive {archive} is damaged or hostile: {error}"
            ) from error
        if isinstance(error, OSError):
            raise StorageError(
                f"cannot unpack {archive} into {folder}: {error.strerror or error}"
            ) from error
        raise


def _extract(archive: Path, folder: Path) -> None:
    with (
        gzip.open(archive) as stream,
        tarfile.open(fileobj=stream, mode="r:", tarinfo=Header) as tar,
    ):
        members = tar.getmembers()
        # The checksum is at the very end, after what tar reads.
        while stream.read(_BLOCK):
            pass
        now = time.time()
        for member in members:
            member.mtime = now
        # Python before 3.11.4 lacks the filter.
        tar.extraction_filter = getattr(tarfile, "data_filter", None)
        tar.extractall(folder, members)
    for parent, _, _ in os.walk(folder):  # the filter leaves folders to the umask
        Path(parent).chmod(FOLDER_MODE)
