"""Extraction of a source archive into an empty folder. The archive is not trusted."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

from cloudtrain.errors import SourceError, StorageError
from cloudtrain.runs.files import FILE_MODE, FOLDER_MODE, make_private_folder
from cloudtrain.source.links import folders_of, link_problem

if TYPE_CHECKING:
    import tarfile

MAX_ENTRIES = 10_000_000
"""Maximum number of files, folders and links: each takes memory before anything is written."""

_BLOCK = 1 << 20


def unpack(archive: Path, folder: Path, limit_bytes: int | None = None) -> None:
    """Extract files, folders and links into `folder`, which is made, or must be empty.

    `limit_bytes`: maximum size of all files together. Raise SourceError if the archive is damaged
    or has an entry that a source archive cannot have, and StorageError if the disk refuses;
    `folder` is left empty then.
    """
    import gzip
    import tarfile

    from cloudtrain.source.extract import DAMAGED, Header

    try:
        make_private_folder(folder)
        if any(folder.iterdir()):
            raise SourceError(
                f"cannot unpack into {folder}: it is not empty", hint="name a new folder"
            )
        stream = gzip.open(archive)  # noqa: SIM115 (closed below, with the other errors)
    except OSError as error:
        raise _storage_error(archive, folder, error) from error
    try:
        with stream, tarfile.open(fileobj=stream, mode="r:", tarinfo=Header) as tar:
            members, folders = _check(tar, limit_bytes)
            # The checksum is at the very end, after what tar reads.
            while stream.read(_BLOCK):
                pass
            for name in folders:
                make_private_folder(folder / name)
            # Python 3.11.4 and later check again by themselves; the checks above do without.
            has_filter = hasattr(tarfile, "data_filter")
            tar.extractall(folder, members, **({"filter": "data"} if has_filter else {}))  # type: ignore[arg-type]
    except BaseException as error:
        _empty(folder)
        if isinstance(error, DAMAGED):
            raise SourceError(
                f"the source archive {archive} is damaged or hostile: {error}"
            ) from error
        if isinstance(error, OSError):
            raise _storage_error(archive, folder, error) from error
        raise


def _check(tar: tarfile.TarFile, limit_bytes: int | None) -> tuple[list[tarfile.TarInfo], set[str]]:
    """Return the members with private modes, and all folders. Raise ValueError for a hostile member."""
    members: dict[str, tarfile.TarInfo] = {}
    links: dict[str, str] = {}
    size = 0
    now = time.time()
    for member in tar:
        name = member.name
        if not {"", ".", ".."}.isdisjoint(name.split("/")) or "\0" in name:
            raise ValueError(f"{name!r} is not a plain relative path")
        if name in members:
            raise ValueError(f"{name!r} is in it twice")
        if member.issym():
            links[name] = member.linkname
        elif not (member.isreg() or member.isdir()) or member.sparse is not None:
            raise ValueError(f"{name} is neither file, folder nor symbolic link")
        size += member.size
        if limit_bytes is not None and size > limit_bytes:
            raise ValueError("it holds more bytes than it may")
        if len(members) >= MAX_ENTRIES:
            raise ValueError("it holds more entries than it may")
        member.mode = FOLDER_MODE if member.isdir() or member.mode & 0o100 else FILE_MODE
        member.mtime = now
        member.uid = os.geteuid()  # without the filter, root would give files away
        member.gid = os.getegid()
        member.uname = member.gname = ""
        members[name] = member

    folders = folders_of(members)
    folders |= {name for name, member in members.items() if member.isdir()}
    files = {name for name, member in members.items() if member.isreg()}
    for name in folders & (files | links.keys()):
        raise ValueError(f"{name!r} is both a folder and a file or link")
    for name in links:
        if why := link_problem(name, links, files, folders):
            raise ValueError(f"{name} is {why}")
    return list(members.values()), folders


def _empty(folder: Path) -> None:
    import shutil

    for entry in folder.iterdir():
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry, ignore_errors=True)
        else:
            entry.unlink(missing_ok=True)


def _storage_error(archive: Path, folder: Path, error: OSError) -> StorageError:
    return StorageError(f"cannot unpack {archive} into {folder}: {error.strerror or error}")
