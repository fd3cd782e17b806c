"""Unpacks a source archive into an empty folder; the archive is not trusted: nothing is written
outside.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import IO, TYPE_CHECKING

from cloudtrain.errors import SourceError, StorageError
from cloudtrain.runs.files import FILE_MODE, FOLDER_MODE, make_private_folder
from cloudtrain.source.links import link_problem

if TYPE_CHECKING:
    import tarfile

_BLOCK = 1 << 20


def unpack(archive: Path, folder: Path, limit_bytes: int | None = None) -> None:
    """Extracts files, folders and links into `folder`, which is made, or must be empty.

    `limit_bytes` is the most that its files may hold in all. SourceError if the archive is damaged
    or holds anything that a source archive cannot; StorageError if the disk refuses. `folder` is
    left empty then.
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
        raise _storage(archive, folder, error) from error
    try:
        with stream, tarfile.open(fileobj=stream, mode="r:", tarinfo=Header) as tar:
            _Extraction(str(folder), limit_bytes).run(tar)
            # The checksum is at the very end, after what tar reads.
            while stream.read(_BLOCK):
                pass
    except BaseException as error:
        _empty(folder)
        if isinstance(error, DAMAGED):
            raise SourceError(
                f"the source archive {archive} is damaged or hostile: {error}"
            ) from error
        if isinstance(error, OSError):
            raise _storage(archive, folder, error) from error
        raise


class _Extraction:
    """One archive that is being extracted. Links come last, so that no file is ever written through
    one.
    """

    def __init__(self, folder: str, limit_bytes: int | None) -> None:
        self._folder = folder
        self._left = limit_bytes
        self._files: set[str] = set()
        self._folders: set[str] = set()
        self._links: dict[str, str] = {}

    def run(self, tar: tarfile.TarFile) -> None:
        import tarfile as module

        # Our own rules are stricter; the standard library's come on top where this Python has them.
        check: Callable[[tarfile.TarInfo, str], object] | None = getattr(
            module, "data_filter", None
        )
        for member in tar:
            name = self._claim(member)
            if check is not None:
                check(member, self._folder)
            if member.type == module.SYMTYPE:
                self._parents(name)
                self._links[name] = member.linkname
            elif member.type in (module.REGTYPE, module.AREGTYPE):
                self._file(name, member, tar.extractfile(member))
            elif member.type == module.DIRTYPE:
                self._parents(name + "/")
            else:
                raise module.ReadError(f"{name} is neither file, folder nor symbolic link")
        for name in self._links:
            if why := link_problem(name, self._links, self._files, self._folders):
                raise module.ReadError(f"{name} is {why}")
        for name, target in self._links.items():
            os.symlink(target, f"{self._folder}/{name}")  # noqa: PTH211

    def _claim(self, member: tarfile.TarInfo) -> str:
        """The member's path; ValueError unless it is relative, plain, and new."""
        parts = member.name.split("/")
        if not {"", ".", ".."}.isdisjoint(parts) or "\0" in member.name:
            raise ValueError(f"{member.name!r} is not a plain relative path")
        above = ["/".join(parts[:depth]) for depth in range(1, len(parts))]
        taken = member.name in self._files or member.name in self._links
        if taken or any(folder in self._files or folder in self._links for folder in above):
            raise ValueError(f"{member.name!r} is in it twice, or inside a file or link")
        if member.name in self._folders and not member.isdir():
            raise ValueError(f"{member.name!r} is both a file and a folder")
        return member.name

    def _parents(self, name: str) -> None:
        parent = name.rpartition("/")[0]
        if parent and parent not in self._folders:
            make_private_folder(Path(self._folder, parent))
            while parent and parent not in self._folders:
                self._folders.add(parent)
                parent = parent.rpartition("/")[0]

    def _file(self, name: str, member: tarfile.TarInfo, content: IO[bytes] | None) -> None:
        if self._left is not None:
            self._left -= member.size
            if self._left < 0:
                raise ValueError("it holds more bytes than it may")
        self._parents(name)
        self._files.add(name)
        mode = FOLDER_MODE if member.mode & 0o100 else FILE_MODE
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        with open(os.open(f"{self._folder}/{name}", flags, mode), "wb") as file:
            while content is not None and (block := content.read(_BLOCK)):
                file.write(block)


def _empty(folder: Path) -> None:
    import shutil

    for entry in folder.iterdir():
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry, ignore_errors=True)
        else:
            entry.unlink(missing_ok=True)


def _storage(archive: Path, folder: Path, error: OSError) -> StorageError:
    return StorageError(f"cannot unpack {archive} into {folder}: {error.strerror or error}")
