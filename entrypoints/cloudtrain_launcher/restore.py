"""Brings back the checkpoints of an earlier run, file by file, before training starts. Standard library only."""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO, Callable, Iterator

from cloudtrain_launcher.storage_sync import LINK_SUFFIX

BLOCK_BYTES = 1 << 20
MAX_LINK_BYTES = 4096
TEMPORARY_SUFFIX = ".restoring"
"""Of a file that is being written; an interrupted run may have left one among its checkpoints."""


LINK_MIN_BYTES = 16 << 20
"""From here on a file of a mount is not copied but led to: a node reads what it needs, not everybody's shards."""


def restore(
    source: Path,
    target: Path,
    node: int,
    log: Callable[[str], None],
    cancelled: Callable[[], bool] = lambda: False,
    *,
    link_large_files: bool = False,
) -> None:
    """Copy each regular file below `source` that is missing below `target`: whole, or not at all.

    What is there is never overwritten, so that it may run again after any interruption. Links are not followed, and
    none is made but for a file that stands for one (see `storage_sync.LINK`) and stays inside. A file that cannot be
    read is passed over with a line in the log; OSError if one cannot be written. Nodes that share a folder do not meet:
    `node` is part of the temporary name. `until`: a reason to stop early. `leads`: large files become links to
    `source`, which stays where it is.
    """
    count = size = led = 0
    target.mkdir(parents=True, exist_ok=True)
    for path in _files(source, log):
        if cancelled():
            return
        goal = target / path.with_name(path.name.removesuffix(LINK_SUFFIX))
        try:
            _make_folders(target, path.parent)
            if os.path.lexists(goal):
                continue
            if path.name.endswith(LINK_SUFFIX):
                _make_link(source / path, goal, len(path.parents) - 1)
                continue
            about = (source / path).lstat()
            if link_large_files and stat.S_ISREG(about.st_mode) and about.st_size >= LINK_MIN_BYTES:
                goal.symlink_to(source / path)
                led += 1
                continue
            with _open(source / path) as content:
                if _write(content, goal, goal.with_name(f".{node}{TEMPORARY_SUFFIX}"), cancelled):
                    count, size = count + 1, size + goal.stat().st_size
        except _SkipFile as why:
            log(f"not restored: {path}: {why}")
    if count:
        log(f"restored {count} files of an earlier run's checkpoints, {size / 1e6:.1f} MB")
    if led:
        log(f"{led} large files of earlier checkpoints are read from storage as they are needed")


class _SkipFile(Exception):
    """Why one file is passed over."""


def _files(source: Path, log: Callable[[str], None]) -> Iterator[Path]:
    """The paths of all but folders below `source`, relative to it, in a fixed order."""

    def tell(error: OSError) -> None:
        log(f"not restored: {error.filename}: {error.strerror}")

    for folder, folders, names in os.walk(source, onerror=tell):
        folders.sort()
        links = [name for name in folders if Path(folder, name).is_symlink()]
        for name in sorted(names + links):
            if not name.endswith(TEMPORARY_SUFFIX):
                yield Path(folder, name).relative_to(source)


def _make_folders(target: Path, below: Path) -> None:
    """Make the folders of `below` in `target`, none of them through a link."""
    for name in below.parts:
        target = target / name
        with suppress(FileExistsError):
            target.mkdir()
        if not stat.S_ISDIR(target.lstat().st_mode):
            raise _SkipFile(f"{target} is in the way: it is no folder")


def _open(path: Path) -> BinaryIO:
    try:
        mode = path.lstat().st_mode
        if not stat.S_ISREG(mode):
            raise _SkipFile("a link" if stat.S_ISLNK(mode) else "not a file")
        return os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC), "rb")
    except OSError as error:
        raise _SkipFile(error.strerror) from None


def _make_link(path: Path, goal: Path, depth: int) -> None:
    """The link that a file stands for, `depth` folders below the top. Behind a name `..` leads nobody knows where."""
    with _open(path) as content:
        link = os.fsdecode(content.read(MAX_LINK_BYTES))
    parts = [part for part in link.split("/") if part not in ("", ".")]
    up = next((count for count, part in enumerate(parts) if part != ".."), len(parts))
    if not link or link.startswith("/") or "\0" in link or up > depth or ".." in parts[up:]:
        raise _SkipFile(f"a link that leads out ({link})")
    goal.symlink_to(link)


def _write(content: BinaryIO, goal: Path, temporary: Path, cancelled: Callable[[], bool]) -> bool:
    """Write the whole of `content` to `goal`; False if it was given up because of `until`."""
    temporary.unlink(missing_ok=True)  # an interrupted attempt's
    try:
        with temporary.open("xb") as file:
            while block := _read(content):
                if cancelled():
                    return False
                file.write(block)
            file.flush()
            os.fsync(file.fileno())
        info = os.fstat(content.fileno())
        with suppress(OSError):  # a mount of a cloud's storage may keep no times
            os.utime(temporary, ns=(info.st_atime_ns, info.st_mtime_ns))  # programs look for the newest
        temporary.replace(goal)
        return True
    finally:
        temporary.unlink(missing_ok=True)


def _read(content: BinaryIO) -> bytes:
    try:
        return content.read(BLOCK_BYTES)
    except OSError as error:
        raise _SkipFile(error.strerror) from None
