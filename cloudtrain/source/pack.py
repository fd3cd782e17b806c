"""Archive of a scanned source folder: one .tar.gz, the same bytes for the same tree."""

from __future__ import annotations

import os
import tarfile
from collections.abc import Callable
from gzip import GzipFile
from pathlib import Path
from typing import BinaryIO

from cloudtrain.errors import SourceError
from cloudtrain.runs.files import (
    FILE_MODE,
    FOLDER_MODE,
    make_private_folder,
    private_opener,
    storing,
    sync_folder,
)
from cloudtrain.source.scan import CHANGED_HINT
from cloudtrain.source.stored_archive import holds, remember
from cloudtrain.source.tree import Progress, SourceEntry, SourceTree, read_content, read_link

# 32 MB of source code: level 4 takes 0.4 s; level 6, gzip's own default, 1.1 s for 8 % fewer bytes;
# level 1 takes 0.2 s for 18 % more bytes.
_GZIP_LEVEL = 4
_TAR_BLOCK = 512
_TAR_RECORD = 20 * _TAR_BLOCK


def pack(
    tree: SourceTree,
    store: Path,
    progress: Progress | None = None,
    cache_dir: Path | None = None,
) -> Path:
    """Write `store/<digest>.tar.gz` unless it exists and holds this tree, and return its path.

    `cache_dir`: folder of remembered checks. Raise SourceError if a file has changed since the scan,
    and StorageError if the store cannot be written. The store never holds a partial archive.
    """
    target = store / f"{tree.digest}.tar.gz"
    count = tree.files_count
    temporary = store / f".{tree.digest}.{os.getpid()}-{os.urandom(4).hex()}.tmp"
    with storing(target):
        if holds(target, tree.digest, cache_dir):
            if progress is not None:
                progress(count, count)
            return target

        make_private_folder(store)
        try:
            with open(temporary, "xb", opener=private_opener) as stream:
                _write(tree, stream, target, progress)
                stream.flush()
                os.fsync(stream.fileno())

            temporary.replace(target)
        finally:
            temporary.unlink(missing_ok=True)

        sync_folder(store)
        remember(target, tree.digest, cache_dir)

    return target


def _write(tree: SourceTree, stream: BinaryIO, target: Path, progress: Progress | None) -> None:
    step = max(1, tree.files_count // 100)
    # Without a name and a time: the same bytes for the same tree.
    with GzipFile("", "wb", _GZIP_LEVEL, stream, mtime=0) as archive:

        def write(block: bytes) -> None:
            with storing(target):  # unlike an error of the file that is being copied
                archive.write(block)

        for count, entry in enumerate(tree.files):
            if progress is not None and count % step == 0:
                progress(count, tree.files_count)
            archive.write(_header(entry))
            if entry.link is None:
                _copy(tree, entry, write)
            elif _current_link(tree, entry) != entry.link:
                raise _changed(entry)

        # tar ends with two empty blocks, padded to a whole record.
        archive.write(bytes(2 * _TAR_BLOCK + -(archive.tell() + 2 * _TAR_BLOCK) % _TAR_RECORD))

    if progress is not None:
        progress(tree.files_count, tree.files_count)


def _copy(tree: SourceTree, entry: SourceEntry, write: Callable[[bytes], None]) -> None:
    extra = tree.payload.get(entry.path)
    if extra:
        source = str(extra)
    else:
        source = f"{tree.root}/{entry.path}"

    try:
        digest = read_content(source, entry.size, write, follow=extra is not None)
    except OSError as error:
        raise _changed(entry, error.strerror) from error

    if digest != entry.sha256:
        raise _changed(entry)
    if padding := -entry.size % _TAR_BLOCK:
        write(bytes(padding))


def _current_link(tree: SourceTree, entry: SourceEntry) -> str | None:
    try:
        return read_link(str(tree.root), entry.path)
    except OSError:
        return None


def _changed(entry: SourceEntry, detail: str | None = None) -> SourceError:
    message = f"{entry.path} changed after the source folder was scanned"
    if detail:
        message += f" ({detail})"

    return SourceError(message, hint=CHANGED_HINT)


def _header(entry: SourceEntry) -> bytes:
    info = tarfile.TarInfo(entry.path)
    info.size = entry.size
    # For the owner alone: a copy must not be more readable than the file.
    may_run = entry.executable or entry.link is not None
    info.mode = FOLDER_MODE if may_run else FILE_MODE
    if entry.link is not None:
        info.type = tarfile.SYMTYPE
        info.linkname = entry.link

    return info.tobuf(tarfile.PAX_FORMAT, "utf-8", "strict")
