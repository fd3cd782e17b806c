"""URIs of files and folders in cloud storage, and object names as paths on this machine. Pure."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from cloudtrain.errors import StorageError

if TYPE_CHECKING:  # looking after a run needs no pydantic
    from cloudtrain.spec.inputs import Input

PREFIX = "cloudtrain"
"""The folder of the user's storage below which everything of ours is stored."""

ARCHIVE = "source.tar.gz"
"""File name of the source archive."""


def safe_join(folder: Path, name: str) -> Path:
    """The path of an object's name below a folder. StorageError for a name that leads out of the
    folder.
    """
    parts = name.split("/")
    if not {"", ".", ".."}.isdisjoint(parts) or "\0" in name:
        message = f"an object is called {name!r}, which is not a path inside a folder"
        raise StorageError(message, hint="bring it with the cloud's own tools, under another name")
    return folder.joinpath(*parts)


def as_folder(uri: str) -> str:
    """The URI with exactly one slash at its end; without it, a prefix would match other names too."""
    return uri.rstrip("/") + "/"


def file_name(uri: str) -> str:
    """The name of the file that a URI means; empty for a folder. A suffix decides: `t.csv`, but not
    `v1.0`.
    """
    name = uri.rpartition("/")[2]
    return name if re.search(r"[^.]\.[A-Za-z]\w*$", name) else ""


def input_file(item: Input, uri: str) -> str:
    """The name of the one file that an input is; empty for a folder. Its type decides, or else the
    suffix.
    """
    if item.type is None:
        return file_name(uri)
    return uri.rpartition("/")[2] if item.type == "file" else ""
