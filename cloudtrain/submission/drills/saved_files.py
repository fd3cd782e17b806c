"""The checkpoints of a run as files: when a new one is there, and which is the newest, for programs
that do not say.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

UNFINISHED = (".tmp", ".temp", ".part", ".partial", ".restoring", ".incomplete")
"""Suffixes of files and folders that are being written and get their name when they are whole."""

Listing = frozenset[tuple[str, int, int, int]]
"""Path, inode, size and time of change of each file."""


class SavedFiles:
    """Counts checkpoints by looking at their folder again and again: one more each time that its
    files have changed and stay as they are.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.count = 0
        self._counted = self._before = frozenset[tuple[str, int, int, int]]()

    def look(self) -> int:
        """Look at the folder now; the number of checkpoints so far."""
        now = listing(self.folder)
        if now == self._before and now - self._counted:
            self.count += 1
            self._counted = now
        self._before = now
        return self.count


def listing(folder: Path) -> Listing:
    """The finished files below a folder."""
    found = []
    for path in _files(folder):
        try:
            about = path.stat()
        except OSError:  # just removed
            continue
        found.append((str(path), about.st_ino, about.st_size, about.st_mtime_ns))
    return frozenset(found)


def newest_file(folder: Path, names: tuple[str, ...] = ()) -> Path | None:
    """The largest file of the newest checkpoint: of the entry in the folder that was changed last.

    `names`: entries that are known to be checkpoints, if any are; else every entry may be one. None
    if there is none.
    """
    entries: dict[str, list[Path]] = {}
    for path in _files(folder):
        entries.setdefault(path.relative_to(folder).parts[0], []).append(path)
    known = {name: files for name, files in entries.items() if name in names} or entries
    if not known:
        return None
    newest = max(known.values(), key=lambda files: max(path.stat().st_mtime_ns for path in files))
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
