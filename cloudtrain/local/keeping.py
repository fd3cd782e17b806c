"""What SageMaker keeps of a container: checkpoints as they come, and at the end all nodes' folders made one."""

from __future__ import annotations

import filecmp
import os
import shutil
import stat
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

_DRAFT = (".cloudtrain-", ".part")
"""How the name of a file begins and ends that is still being copied by us."""


def sync(source: Path, into: Path) -> int:
    """Copy the files that are new, or have another size or time than their copy; returns how many.

    Each comes whole or not at all. What vanishes or changes meanwhile is left to the next round; deletions are not
    passed on, and nothing is removed for a folder that now has a file's name, or the other way round. Links are passed
    over: storage in the cloud has none.
    """
    copied = 0
    for entry in _entries(source):
        path, target = Path(entry.path), into / entry.name
        if entry.is_dir(follow_symlinks=False):
            copied += sync(path, target)
        elif entry.is_file(follow_symlinks=False):
            with suppress(FileNotFoundError, FileExistsError, NotADirectoryError, IsADirectoryError):
                copied += _copy(path, target)
    return copied


def merge(folders: Sequence[Path], into: Path) -> list[str]:
    """Bring the content of all folders into one; returns the names that hold something else in a later folder.

    What comes first stays, and so does what `into` has already. Files are shared with their folder (hard links) where
    the disk can do that. Links stay links; those that lead out of the folder, or only might, are left out.
    """
    clashes: dict[str, None] = {}
    for folder in folders:
        into.mkdir(parents=True, exist_ok=True)
        for name in _merge(folder, into, depth=0):
            clashes[name] = None
    return list(clashes)


def _copy(path: Path, target: Path) -> bool:
    before = path.lstat()
    with suppress(FileNotFoundError):
        there = target.lstat()
        if (there.st_size, there.st_mtime_ns) == (before.st_size, before.st_mtime_ns):
            return False
    target.parent.mkdir(parents=True, exist_ok=True)
    draft = _draft_of(target)
    try:
        shutil.copyfile(path, draft, follow_symlinks=False)
        os.utime(draft, ns=(before.st_atime_ns, before.st_mtime_ns))
        after = path.lstat()
        if (after.st_ino, after.st_size, after.st_mtime_ns) != (before.st_ino, before.st_size, before.st_mtime_ns):
            return False
        draft.replace(target)
    finally:
        draft.unlink(missing_ok=True)
    return True


def _merge(folder: Path, into: Path, depth: int) -> list[str]:
    """One folder's content, `depth` folders below the top; the names that clash, relative to `folder`."""
    clashes = []
    for entry in _entries(folder):
        path, target = Path(entry.path), into / entry.name
        kind, there = _kind(path), _kind(target)
        if kind == stat.S_IFLNK and not _stays_inside(str(path.readlink()), depth):
            continue
        if kind == stat.S_IFDIR and there in (stat.S_IFDIR, 0):
            target.mkdir(exist_ok=True)
            clashes += [f"{entry.name}/{name}" for name in _merge(path, target, depth + 1)]
        elif kind not in (stat.S_IFREG, stat.S_IFDIR, stat.S_IFLNK):
            continue  # a pipe, a socket: nothing that could be kept
        elif there:
            if kind != there or not _is_same(path, target, kind):
                clashes.append(entry.name)
        elif kind == stat.S_IFLNK:
            target.symlink_to(path.readlink())
        else:
            _share(path, target)
    return clashes


def _share(path: Path, target: Path) -> None:
    draft = _draft_of(target)
    try:
        try:
            draft.hardlink_to(path)
        except OSError:  # another disk, or one without links
            shutil.copy2(path, draft)
        draft.replace(target)
    finally:
        draft.unlink(missing_ok=True)


def _is_same(path: Path, there: Path, kind: int) -> bool:
    if kind == stat.S_IFLNK:
        return path.readlink() == there.readlink()
    return kind == stat.S_IFREG and (path.samefile(there) or filecmp.cmp(path, there, shallow=False))


def _stays_inside(link: str, depth: int) -> bool:
    """Whether a link leads to a place below the top, wherever other links lead that obey the same rule.

    So `..` may only come first: behind a name, which may be a link, it leads nobody knows where.
    """
    parts = [part for part in link.split("/") if part not in ("", ".")]
    up = next((count for count, part in enumerate(parts) if part != ".."), len(parts))
    return not link.startswith("/") and up <= depth and ".." not in parts[up:]


def _kind(path: Path) -> int:
    """S_IFREG, S_IFDIR, S_IFLNK, another, or 0 where nothing is."""
    try:
        return stat.S_IFMT(path.lstat().st_mode)
    except FileNotFoundError:
        return 0


def _entries(folder: Path) -> list[os.DirEntry[str]]:
    """What is in a folder, by name; nothing when it is none (any more)."""
    begin, end = _DRAFT
    try:
        with os.scandir(folder) as found:
            known = [entry for entry in found if not (entry.name.startswith(begin) and entry.name.endswith(end))]
    except (FileNotFoundError, NotADirectoryError):
        return []
    return sorted(known, key=lambda entry: entry.name)


def _draft_of(target: Path) -> Path:
    begin, end = _DRAFT
    return target.with_name(f"{begin}{os.urandom(4).hex()}{end}")
