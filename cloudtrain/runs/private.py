"""Folders and files that nobody else may read, whatever the umask: they hold logs, env values, copies of sources."""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from pathlib import Path

FOLDER, FILE = 0o700, 0o600
OTHERS = 0o077
"""What group and others may do: nothing."""

_OURS = ("runs", "sources", "cache", "leftovers", "index.jsonl")


def private_folder(folder: Path) -> None:
    """Make a folder, and those above it that are not there yet, for this user alone. OSError when the disk refuses."""
    missing = []
    while not folder.exists():  # below a file the disk says what is wrong
        missing.append(folder)
        folder = folder.parent
    for each in reversed(missing):
        each.mkdir(FOLDER, exist_ok=True)


def private(path: str, flags: int) -> int:
    """An `opener` for `open` that creates files for this user alone."""
    return os.open(path, flags, FILE)


def tighten(data_dir: Path) -> None:
    """Take from others what an earlier version left them of a data folder. What is not this user's stays as it is."""
    for name in _OURS:
        with suppress(OSError):  # not there, or a disk that knows no rights
            about = os.lstat(data_dir / name)
            mode = stat.S_IMODE(about.st_mode)
            if mode & OTHERS and about.st_uid == os.geteuid() and not stat.S_ISLNK(about.st_mode):
                (data_dir / name).chmod(mode & ~OTHERS)
