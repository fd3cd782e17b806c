"""URIs of files and folders in cloud storage."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # watching a run does not need pydantic
    from cloudtrain.spec.inputs import Input

PREFIX = "cloudtrain"
"""Folder in the user's storage that contains everything of ours."""

ARCHIVE = "source.tar.gz"
"""File name of the source archive."""


def run_folder(run_id: str) -> str:
    """Return the name of a run's folder in the storage, with a slash at the end."""
    return f"{PREFIX}/runs/{run_id}/"


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
