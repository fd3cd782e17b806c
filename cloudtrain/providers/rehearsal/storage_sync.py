"""Copy a container's files as SageMaker does: checkpoints during the run, results at the end."""

from __future__ import annotations

import filecmp
import os
import shutil
import stat
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from cloudtrain.providers import Note
from cloudtrain.source.links import relative_target

_DRAFT = (".cloudtrain-", ".part")
"""Prefix and suffix of the name of a file that is still being copied."""


FileStates = dict[Path, tuple[int, int]]
"""Path -> size in bytes, and time of the last change in nanoseconds."""


def sync_folder(source: Path, into: Path, known_files: FileStates | None = None) -> int:
    """Copy new and changed files, by size or time; return the number of copies.

    Each file is copied completely or not at all. A file that vanishes or changes meanwhile is left
    to the next call, and a folder never replaces a file, or a file a folder. Symbolic links are
    skipped: cloud storage has none. `known_files`: files copied by earlier calls, updated in place;
    those deleted in `source` since are deleted in `into`, as SageMaker does.
    """
    copied = 0
    current = dict(_file_states(source))
    known_files = {} if known_files is None else known_files
    for path, state in current.items():
        if known_files.get(path) != state:
            target = into / path.relative_to(source)
            with suppress(
                FileNotFoundError, FileExistsError, NotADirectoryError, IsADirectoryError
            ):
                copied += _copy(path, target)
                copy = target.lstat()
                if (copy.st_size, copy.st_mtime_ns) == state:
                    known_files[path] = state
    for path in known_files.keys() - current.keys():
        del known_files[path]
        _delete(into, path.relative_to(source))
    return copied


def _file_states(folder: Path) -> Iterator[tuple[Path, tuple[int, int]]]:
    for entry in _entries(folder):
        if entry.is_dir(follow_symlinks=False):
            yield from _file_states(Path(entry.path))
        elif entry.is_file(follow_symlinks=False):
            with suppress(FileNotFoundError):
                status = entry.stat(follow_symlinks=False)
                yield Path(entry.path), (status.st_size, status.st_mtime_ns)


def _delete(folder: Path, path: Path) -> None:
    """Delete a file, and the folders that are empty after that."""
    with suppress(OSError):
        (folder / path).unlink()
        for parent in path.parents[:-1]:
            (folder / parent).rmdir()


def merge(folders: Sequence[Path], into: Path, root: str, note: Note) -> list[str]:
    """Merge the content of all folders into one; return the paths that differ.

    The first file of a path is kept, as is anything that `into` has already. Files are hard links
    where the disk supports them. Symbolic links become relative ones; `note` is called for links
    that point outside, or might, which are left out. `root`: the path of the folders in their
    containers.
    """
    clashes: dict[str, None] = {}
    for folder in folders:
        into.mkdir(parents=True, exist_ok=True)
        for name in _merge(
            folder, into, "", (root, str(folder)), lambda text: note(f"{into.name}/{text}")
        ):
            clashes[name] = None
    return list(clashes)


def _copy(path: Path, target: Path) -> bool:
    before = path.lstat()
    with suppress(FileNotFoundError):
        copy = target.lstat()
        if (copy.st_size, copy.st_mtime_ns) == (before.st_size, before.st_mtime_ns):
            return False
    target.parent.mkdir(parents=True, exist_ok=True)
    draft = _draft_of(target)
    try:
        shutil.copyfile(path, draft, follow_symlinks=False)
        os.utime(draft, ns=(before.st_atime_ns, before.st_mtime_ns))
        after = path.lstat()
        if (after.st_ino, after.st_size, after.st_mtime_ns) != (
            before.st_ino,
            before.st_size,
            before.st_mtime_ns,
        ):
            return False
        draft.replace(target)
    finally:
        draft.unlink(missing_ok=True)
    return True


def _merge(folder: Path, into: Path, prefix: str, roots: Sequence[str], note: Note) -> list[str]:
    """Merge one folder at `prefix` ("a/b/"); return clashing paths, relative to `folder`."""
    clashes = []
    link = ""
    for entry in _entries(folder):
        path = Path(entry.path)
        target = into / entry.name
        kind = _kind(path)
        target_kind = _kind(target)
        if kind == stat.S_IFLNK:
            link = relative_target(prefix + entry.name, str(path.readlink()), roots)
            if not _stays_inside(link, prefix.count("/")):
                note(f"{prefix}{entry.name} was left out: a link that points outside ({link})")
                continue
        if kind == stat.S_IFDIR and target_kind in (stat.S_IFDIR, 0):
            target.mkdir(exist_ok=True)
            clashes += [
                f"{entry.name}/{name}"
                for name in _merge(path, target, f"{prefix}{entry.name}/", roots, note)
            ]
        elif kind not in (stat.S_IFREG, stat.S_IFDIR, stat.S_IFLNK):
            continue  # a pipe or a socket, without content
        elif target_kind:
            if kind != target_kind or not _is_same(path, target, link):
                clashes.append(entry.name)
        elif kind == stat.S_IFLNK:
            target.symlink_to(link)
        else:
            _share(path, target)
    return clashes


def _share(path: Path, target: Path) -> None:
    draft = _draft_of(target)
    try:
        try:
            draft.hardlink_to(path)
        except OSError:  # another disk, or one without hard links
            shutil.copy2(path, draft)
        draft.replace(target)
    finally:
        draft.unlink(missing_ok=True)


def _is_same(path: Path, target: Path, link: str) -> bool:
    """Return True if two entries of the same kind are equal.

    `link`: the target of `path`, if it is a symbolic link.
    """
    kind = _kind(path)
    if kind == stat.S_IFLNK:
        return link == str(target.readlink())
    return kind == stat.S_IFREG and (
        path.samefile(target) or filecmp.cmp(path, target, shallow=False)
    )


def _stays_inside(link: str, depth: int) -> bool:
    """Return True if a link points below the top, wherever other accepted links point.

    `..` may only come first: after a name, which may be a link itself, its target is not known.
    """
    parts = [part for part in link.split("/") if part not in ("", ".")]
    up = next((count for count, part in enumerate(parts) if part != ".."), len(parts))
    return not link.startswith("/") and up <= depth and ".." not in parts[up:]


def _kind(path: Path) -> int:
    """Return the file type of `stat`, such as S_IFREG; 0 if the path does not exist."""
    try:
        return stat.S_IFMT(path.lstat().st_mode)
    except FileNotFoundError:
        return 0


def _entries(folder: Path) -> list[os.DirEntry[str]]:
    """Return the entries of a folder by name, without unfinished copies; empty if it is missing."""
    begin, end = _DRAFT
    try:
        with os.scandir(folder) as iterator:
            entries = [
                entry
                for entry in iterator
                if not (entry.name.startswith(begin) and entry.name.endswith(end))
            ]
    except (FileNotFoundError, NotADirectoryError):
        return []
    return sorted(entries, key=lambda entry: entry.name)


def _draft_of(target: Path) -> Path:
    begin, end = _DRAFT
    return target.with_name(f"{begin}{os.urandom(4).hex()}{end}")
