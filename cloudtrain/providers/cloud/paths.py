"""Names from outside as paths of this machine: never out of their folder. Pure."""

from __future__ import annotations

from pathlib import Path

from cloudtrain.errors import StorageError


def inside(folder: Path, name: str) -> Path:
    """A path below the folder; StorageError for a name that leads out of it."""
    parts = name.split("/")
    if not {"", ".", ".."}.isdisjoint(parts) or "\0" in name:
        message = f"an object is called {name!r}, which is not a path inside a folder"
        raise StorageError(message, hint="bring it with the cloud's own tools, under another name")
    return folder.joinpath(*parts)
