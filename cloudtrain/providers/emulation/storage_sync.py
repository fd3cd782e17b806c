"""What SageMaker keeps of a container: checkpoints as they come, and at the end all nodes' folders made one."""

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
"""How the name of a file begins and ends that is still being copied by us."""


FileStates = dict[Path, tuple[int, int]]
"""Files by their paths: size, and time of the last change in nanoseconds."""


def sync_folder(source: Path, into: Path, seen: FileStates | None = None) -> int:
    """Copy the files that are new, or have another size or time than their copy; returns how many.

    Each comes whole or not at all. What vanishes or changes meanwhile is left to the next round, and nothing is removed
    for a folder that now has a file's name, or the other way round. Links are passed over: storage in the cloud has
    none. `seen`: what earlier rounds have brought from here, to be kept by the caller; of that, what is deleted here is
    deleted there, as SageMaker does.
    """
    copied, now, seen = 0, dict(_file_states(source)), {} if seen is None else seen
    for path, state in now.items():
        if seen.get(path) != state:
            target = into / path.relative_to(source)
            with suppress(FileNotFoundError, FileExistsError, NotADirectoryError, IsADirectoryError):
                copied += _copy(path, target)
                there = target.lstat()
                if (there.st_size, there.st_mtime_ns) == state:
                    seen[path] = state
    for path in seen.keys() - now.keys():
        del seen[path]
        _delete(into, path.relative_to(source))
    return copied


def _file_states(folder: Path) -> Iterator[tuple[Path, tuple[int, int]]]:
    for entry in _entries(folder):
        if entry.is_dir(follow_symlinks=False):
            yield from _file_states(Path(entry.path))
        elif entry.is_file(follow_symlinks=False):
            with suppress(FileNotFoundError):
                about = entry.stat(follow_symlinks=False)
                yield Path(entry.path), (about.st_size, about.st_mtime_ns)


def _delete(folder: Path, path: Path) -> None:
    """A file, and the folders that it was the last of."""
    with suppress(OSError):
        (folder / path).unlink()
        for parent in path.parents[:-1]:
            (folder / parent).rmdir()


def merge(folders: Sequence[Path], into: Path, root: str, note: Note) -> list[str]:
    """Bring the content of all folders into one; returns the names that hold something else in a later folder.

    What comes first stays, and so does what `into` has already. Files are shared with their folder (hard links) where
    the disk can do that. Links stay links, relative ones; those that lead out of the folder, or only might, are left
    out, and `note` gets them. `root`: what each folder is called in its container.
    """
    clashes: dict[str, None] = {}
    for folder in folders:
        into.mkdir(parents=True, exist_ok=True)
        for name in _merge(folder, into, "", (root, str(folder)), lambda text: note(f"{into.name}/{text}")):
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


def _merge(folder: Path, into: Path, prefix: str, roots: Sequence[str], note: Note) -> list[str]:
    """One folder's content, `prefix` ("a/b/") below the top; the names that clash, relative to `folder`."""
    clashes, link = [], ""
    for entry in _entries(folder):
        path, target = Path(entry.path), into / entry.name
        kind, there = _kind(path), _kind(target)
        if kind == stat.S_IFLNK:
            link = relative_target(prefix + entry.name, str(path.readlink()), roots)
            if not _stays_inside(link, prefix.count("/")):
                note(f"{prefix}{entry.name} was left out: a link that leads out ({link})")
                continue
        if kind == stat.S_IFDIR and there in (stat.S_IFDIR, 0):
            target.mkdir(exist_ok=True)
            clashes += [f"{entry.name}/{name}" for name in _merge(path, target, f"{prefix}{entry.name}/", roots, note)]
        elif kind not in (stat.S_IFREG, stat.S_IFDIR, stat.S_IFLNK):
            continue  # a pipe, a socket: nothing that could be kept
        elif there:
            if kind != there or not _is_same(path, target, link):
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
        except OSError:  # another disk, or one without links
            shutil.copy2(path, draft)
        draft.replace(target)
    finally:
        draft.unlink(missing_ok=True)


def _is_same(path: Path, there: Path, link: str) -> bool:
    """Whether two entries of one kind are the same. `link`: where the first one leads, if it is a link."""
    kind = _kind(path)
    if kind == stat.S_IFLNK:
        return link == str(there.readlink())
    return kind == stat.S_IFREG and (path.samefile(there) or filecmp.cmp(path, there, shallow=False))


def _stays_inside(link: str, depth: int) -> bool:
    """Whether a link leads to a place below the top, wherever other links lead that obey the same rule.

    So `..` may only come first: behind a name, which may be a link, its target is not known.
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
