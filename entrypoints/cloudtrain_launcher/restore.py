"""Restore of an earlier run's checkpoints, file by file, before training. Standard library only."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from cloudtrain_launcher.storage_sync import LINK_SUFFIX

BLOCK_BYTES = 1 << 20
MAX_LINK_BYTES = 4096
TEMPORARY_SUFFIX = ".restoring"
"""Suffix of an unfinished file, which an interrupted run may have left."""

LINK_MIN_BYTES = 16 << 20
"""Minimum size of a link to a mount's file: a node reads only its own shards."""


def restore(
    source: Path,
    target: Path,
    node: int,
    log: Callable[[str], None],
    cancelled: Callable[[], bool] = lambda: False,
    *,
    link_large_files: bool = False,
) -> None:
    """Copy each regular file that is missing below `target`, as a whole or not at all.

    Existing files are never overwritten, so it can run again after any interruption. Links are not
    followed; only a file that describes a link (see `storage_sync.LINK_SUFFIX`) becomes one, if it
    stays inside `target`. Unreadable files are skipped with a line in the log; OSError if a write
    fails. `node` is part of the temporary name, so that nodes can share a folder. Return early if
    `cancelled()` is true. `link_large_files`: files of `LINK_MIN_BYTES` become links to `source`,
    which must remain.
    """
    count = size = linked = 0
    target.mkdir(parents=True, exist_ok=True)

    for path in _files(source, log):
        if cancelled():
            return

        destination = target / path.with_name(path.name.removesuffix(LINK_SUFFIX))

        try:
            _make_folders(target, path.parent)
            if os.path.lexists(destination):
                continue

            if path.name.endswith(LINK_SUFFIX):
                _make_link(source / path, destination, len(path.parents) - 1)
                continue

            info = (source / path).lstat()

            if link_large_files and stat.S_ISREG(info.st_mode) and info.st_size >= LINK_MIN_BYTES:
                destination.symlink_to(source / path)
                linked += 1
                continue

            with _open(source / path) as content:
                if _write(
                    content,
                    destination,
                    destination.with_name(f".{node}{TEMPORARY_SUFFIX}"),
                    cancelled,
                ):
                    count += 1
                    size += destination.stat().st_size
        except _SkipFile as reason:
            log(f"not restored: {path}: {reason}")

    if count:
        log(f"restored {count} files of an earlier run's checkpoints, {size / 1e6:.1f} MB")

    if linked:
        log(
            f"{linked} large files of earlier checkpoints are read from storage when they are"
            " needed"
        )


class _SkipFile(Exception):
    """Return the reason for skipping a file."""


def _files(source: Path, log: Callable[[str], None]) -> Iterator[Path]:
    """Return the sorted relative paths below `source`, without folders."""

    def report(error: OSError) -> None:
        log(f"not restored: {error.filename}: {error.strerror}")

    for folder, folders, names in os.walk(source, onerror=report):
        folders.sort()
        links = [name for name in folders if Path(folder, name).is_symlink()]
        for name in sorted(names + links):
            if not name.endswith(TEMPORARY_SUFFIX):
                yield Path(folder, name).relative_to(source)


def _make_folders(target: Path, below: Path) -> None:
    """Create the folders of the relative path `below` in `target`, none of them through a link."""
    for name in below.parts:
        target = target / name
        with suppress(FileExistsError):
            target.mkdir()
        if not stat.S_ISDIR(target.lstat().st_mode):
            raise _SkipFile(f"{target} is in the way: it is not a folder")


def _open(path: Path) -> BinaryIO:
    try:
        mode = path.lstat().st_mode
        if not stat.S_ISREG(mode):
            raise _SkipFile("a link" if stat.S_ISLNK(mode) else "not a file")

        return os.fdopen(
            os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC), "rb"
        )
    except OSError as error:
        raise _SkipFile(error.strerror) from None


def _make_link(path: Path, destination: Path, depth: int) -> None:
    """Create the link that a file describes, `depth` folders below the top, if it stays inside.

    A `..` after a name is rejected: the name may be a link itself.
    """
    with _open(path) as content:
        link = os.fsdecode(content.read(MAX_LINK_BYTES))

    parts = [part for part in link.split("/") if part not in ("", ".")]
    up = next((count for count, part in enumerate(parts) if part != ".."), len(parts))
    if not link or link.startswith("/") or "\0" in link or up > depth or ".." in parts[up:]:
        raise _SkipFile(f"a link to outside ({link})")

    destination.symlink_to(link)


def _write(
    content: BinaryIO, destination: Path, temporary: Path, cancelled: Callable[[], bool]
) -> bool:
    """Write `content` to `destination`; after a cancellation remove it and return False."""
    temporary.unlink(missing_ok=True)  # left by an interrupted attempt

    try:
        with temporary.open("xb") as file:
            while block := _read(content):
                if cancelled():
                    return False

                file.write(block)

            file.flush()
            os.fsync(file.fileno())

        info = os.fstat(content.fileno())
        with suppress(OSError):  # a mount of cloud storage may not store times
            # Programs look for the newest checkpoint.
            os.utime(temporary, ns=(info.st_atime_ns, info.st_mtime_ns))

        temporary.replace(destination)
        return True
    finally:
        temporary.unlink(missing_ok=True)


def _read(content: BinaryIO) -> bytes:
    try:
        return content.read(BLOCK_BYTES)
    except OSError as error:
        raise _SkipFile(error.strerror) from None
