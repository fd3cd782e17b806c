"""URIs of files and folders in cloud storage, and object names as paths on this machine."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from cloudtrain.errors import StorageError
from cloudtrain.providers.progress import Progress
from cloudtrain.runs.files import storing

if TYPE_CHECKING:  # watching a run does not need pydantic
    from cloudtrain.spec.inputs import Input

PREFIX = "cloudtrain"
"""Folder in the user's storage that contains everything of ours."""

ARCHIVE = "source.tar.gz"
"""File name of the source archive."""


def safe_join(folder: Path, name: str) -> Path:
    """Return the path of an object below a folder. StorageError for a name that leads outside."""
    parts = name.split("/")
    if not {"", ".", ".."}.isdisjoint(parts) or "\0" in name:
        message = f"an object is called {name!r}, which is not a path inside a folder"
        raise StorageError(message, hint="bring it with the cloud's own tools, under another name")
    return folder.joinpath(*parts)


def download_all(
    objects: Sequence[tuple[str, int]],
    prefix: str,
    folder: Path,
    download: Callable[[str, Path], None],
    progress: Progress | None,
) -> list[Path]:
    """Download objects, each a name with its size in bytes, below their prefix; return the files.

    `download` stores one object as a file. An object with exactly the prefix keeps its own name.
    """
    total = sum(size for _, size in objects)
    loaded_bytes = 0

    files = []
    for name, size in objects:
        path = safe_join(folder, name[len(prefix) :].lstrip("/") or name.rpartition("/")[2])
        with storing(path):
            download(name, path)
        files.append(path)
        loaded_bytes += size
        if progress is not None:
            progress(loaded_bytes, total)

    return files


def as_folder(uri: str) -> str:
    """Return the URI with exactly one slash at its end, so that a prefix matches whole names."""
    return uri.rstrip("/") + "/"


def file_name(uri: str) -> str:
    """Return the file name in a URI; empty for a folder.

    A suffix decides: `t.csv` is a file, `v1.0` is not.
    """
    name = uri.rpartition("/")[2]
    if not re.search(r"[^.]\.[A-Za-z]\w*$", name):
        return ""

    return name


def input_file(item: Input, uri: str) -> str:
    """Return the file name of an input; empty for a folder. Its type or its suffix decides."""
    if item.type is None:
        return file_name(uri)
    if item.type != "file":
        return ""

    return uri.rpartition("/")[2]
