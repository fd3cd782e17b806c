"""Checkpoints of a program that reports none: counted and found by their files."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

UNFINISHED = (".tmp", ".temp", ".part", ".partial", ".restoring", ".incomplete")
"""Suffixes of files and folders that are still being written."""

Listing = frozenset[tuple[str, int, int, int]]
"""Path, inode, size and change time of each file."""


class SavedFiles:
    """Counter of checkpoints: one more whenever the files in their folder changed and settled."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.count = 0
        self._counted: Listing = frozenset()
        self._before: Listing = frozenset()

    def look(self) -> int:
        """Look at the folder and return the current number of checkpoints."""
        current = listing(self.folder)
        if current == self._before and current - self._counted:
            self.count += 1
            self._counted = current

        self._before = current
        return self.count


def listing(folder: Path) -> Listing:
    """Return the finished files below a folder."""
    entries = []
    for path in _files(folder):
        try:
            status = path.stat()
        except OSError:  # just removed
            continue

        entries.append((str(path), status.st_ino, status.st_size, status.st_mtime_ns))

    return frozenset(entries)


def newest_file(folder: Path, names: tuple[str, ...] = ()) -> Path | None:
    """Return the largest file of the newest checkpoint, the last changed entry, or None.

    `names`: entries known to be checkpoints; if empty, every entry may be one.
    """
    entries: dict[str, list[Path]] = {}
    for path in _files(folder):
        entries.setdefault(path.relative_to(folder).parts[0], []).append(path)

    candidates = {name: files for name, files in entries.items() if name in names} or entries
    if not candidates:
        return None

    newest = max(
        candidates.values(), key=lambda files: max(path.stat().st_mtime_ns for path in files)
    )
    return max(newest, key=lambda path: path.stat().st_size)


def _files(folder: Path) -> Iterator[Path]:
    for parent, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if not _is_unfinished(name)]
        for name in names:
            path = Path(parent, name)
            if not _is_unfinished(name) and not path.is_symlink():
                yield path


def _is_unfinished(name: str) -> bool:
    return name.startswith(".") or name.endswith(UNFINISHED)
