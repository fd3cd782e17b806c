"""Downloads of many files from a cloud's storage, several at the same time.

A file gets the time of its object. A file with the size and the time of its object is complete, so
that a download that was cut short continues.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event, Lock
from typing import TYPE_CHECKING, NamedTuple

from cloudtrain.errors import StorageError
from cloudtrain.file_names import is_storable
from cloudtrain.runs.files import storing

if TYPE_CHECKING:
    from cloudtrain.providers.progress import Progress

DOWNLOADS_AT_ONCE = 10
"""Files that are read at the same time: as many as the AWS CLI reads."""

Count = Callable[[int], None]
"""Called with the number of bytes that have arrived since the last call."""


class StoredFile(NamedTuple):
    """A file in a cloud's storage, as its list shows it."""

    name: str
    size: int
    """In bytes."""
    modified: float
    """A Unix timestamp."""


class _StoppedError(Exception):
    """Another download has failed, or the user has pressed Ctrl-C."""


def safe_join(folder: Path, name: str) -> Path:
    """Return the path of an object below a folder. StorageError for a name that leads outside."""
    parts = name.split("/")
    if not {"", ".", ".."}.isdisjoint(parts) or "\0" in name:
        message = f"an object is called {name!r}, which is not a path inside a folder"
        raise StorageError(message, hint="bring it with the cloud's own tools, under another name")
    if not is_storable(name):
        message = f"an object is called {name!r}, and Windows cannot store that name"
        raise StorageError(message, hint="run cloudtrain in WSL to fetch it")

    return folder.joinpath(*parts)


def download_all(
    files: Sequence[StoredFile],
    prefix: str,
    folder: Path,
    download: Callable[[str, int, Path, Count], None],
    progress: Progress | None,
) -> list[Path]:
    """Download files below their prefix into a folder; return their paths.

    `download` stores a file of that name and size at a path, completely or not at all. A file with
    exactly the prefix keeps its own name. `progress` is called with bytes.
    """
    paths = []
    missing = []
    for file in files:
        name = file.name[len(prefix) :].lstrip("/") or file.name.rpartition("/")[2]
        path = safe_join(folder, name)
        paths.append(path)
        if not _is_complete(path, file):
            missing.append((file, path))

    total = sum(file.size for file in files)
    count = count_of(total, progress, loaded=total - sum(file.size for file, _ in missing))
    stopped = Event()

    def count_unless_stopped(size: int) -> None:
        if stopped.is_set():
            raise _StoppedError
        count(size)

    def load(item: tuple[StoredFile, Path]) -> None:
        file, path = item
        with storing(path):
            count_unless_stopped(0)
            download(file.name, file.size, path, count_unless_stopped)
            os.utime(path, (file.modified, file.modified))

    with ThreadPoolExecutor(DOWNLOADS_AT_ONCE) as pool:
        try:
            for _ in pool.map(load, missing):
                pass
        except BaseException:
            stopped.set()
            pool.shutdown(cancel_futures=True)
            raise

    return paths


def _is_complete(path: Path, file: StoredFile) -> bool:
    try:
        status = path.lstat()
    except OSError:
        return False

    return status.st_size == file.size and abs(status.st_mtime - file.modified) < 1e-3


def count_of(total: int, progress: Progress | None, loaded: int = 0) -> Count:
    """Return what adds up bytes from several threads, and calls `progress` with the sum."""
    lock = Lock()

    def count(size: int) -> None:
        nonlocal loaded
        with lock:
            loaded += size
            if progress is not None:
                progress(min(loaded, total), total)

    return count
