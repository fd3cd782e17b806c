"""Downloads of folders from a cloud's storage.

A file gets the time of its object. A file with the size and the time of its object is complete, so
that a download that was cut short continues.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from cloudtrain.errors import StorageError
from cloudtrain.file_names import is_storable
from cloudtrain.providers.shared.transfers import Count, counter, transfer_all
from cloudtrain.runs.files import storing

if TYPE_CHECKING:
    from cloudtrain.providers.progress import Progress


class StoredFile(NamedTuple):
    """A file in a cloud's storage, as its list shows it."""

    name: str
    size: int
    """In bytes."""
    modified: float
    """A Unix timestamp."""


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


@contextmanager
def draft_of(path: Path) -> Iterator[Path]:
    """Yield a file beside a path; it gets the path at the end, and is removed after an error."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{os.urandom(8).hex()}.part")  # the name may be as long as disks allow
    try:
        yield draft
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)


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

    def load(item: tuple[StoredFile, Path], count: Count) -> None:
        file, path = item
        with storing(path):
            count(0)
            download(file.name, file.size, path, count)
            os.utime(path, (file.modified, file.modified))

    total = sum(file.size for file in files)
    before = total - sum(file.size for file, _ in missing)
    transfer_all(load, missing, counter(total, progress, before))

    return paths


def _is_complete(path: Path, file: StoredFile) -> bool:
    try:
        status = path.lstat()
    except OSError:
        return False

    return status.st_size == file.size and abs(status.st_mtime - file.modified) < 1e-3
