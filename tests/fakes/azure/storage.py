"""Containers of blobs as folders on disk: what a job writes into a mounted folder is a blob at
once.
"""

from __future__ import annotations

import itertools
import os
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

LONGEST_NAME_BYTES = 255
"""Maximum length of one part of a path, on most file systems."""


class Blob(NamedTuple):
    """Facts about a blob besides its content."""

    name: str
    size: int
    created: float
    modified: float
    etag: str
    metadata: Mapping[str, str]
    content_type: str


@dataclass
class _Facts:
    """Facts that a file cannot hold."""

    created: float = 0
    metadata: dict[str, str] = field(default_factory=dict)
    content_type: str = "application/octet-stream"


class Container:
    """One container.

    Blobs whose names do not fit into its folder stay in memory, unseen by jobs.
    """

    def __init__(self, name: str, folder: Path, scratch: Path) -> None:
        """`scratch`: a folder of the same file system, for incomplete files."""
        self.name = name
        self.folder = folder
        self._scratch = scratch
        folder.mkdir(parents=True)
        self._lock = threading.RLock()
        self.deleted: list[Blob] = []
        """Blobs under soft delete."""
        self._odd: dict[str, tuple[bytes, float]] = {}
        self._facts: dict[str, _Facts] = {}
        self._numbers = itertools.count()

    def names(self, prefix: str = "") -> list[str]:
        """All blobs whose names begin with this, in their order."""
        with self._lock:
            matches = [name for name in self._files() if name.startswith(prefix)]
            return sorted({*matches, *(name for name in self._odd if name.startswith(prefix))})

    def properties(self, name: str) -> Blob | None:
        """A blob's properties, if there is one of this name."""
        with self._lock:
            facts = self._facts.get(name) or _Facts()
            if name in self._odd:
                content, modified = self._odd[name]
                size = len(content)
                changed = int(modified * 1e9)
                created = facts.created
            else:
                path = self._path(name)
                try:
                    status = path.stat() if path and path.is_file() else None
                except OSError:
                    return None
                if status is None:
                    return None
                size = status.st_size
                changed = status.st_mtime_ns
                created = facts.created or status.st_ctime
            etag = f'"0x{changed:X}{size:X}"'
            return Blob(
                name, size, created, changed / 1e9, etag, facts.metadata, facts.content_type
            )

    def read(self, name: str) -> bytes | None:
        """A blob's content, if there is one of this name."""
        with self._lock:
            if name in self._odd:
                return self._odd[name][0]
            path = self._path(name)
            try:
                return path.read_bytes() if path and path.is_file() else None
            except OSError:
                return None

    def read_range(self, name: str, start: int, size: int) -> bytes:
        """A part of a blob, without the rest of a large one."""
        with self._lock:
            path = self._path(name)
            if path is None:
                return self._odd[name][0][start : start + size]
            try:
                with path.open("rb") as file:
                    file.seek(start)
                    return file.read(size)
            except FileNotFoundError:  # a job has just deleted it
                return b""

    def write(
        self,
        name: str,
        content: bytes,
        metadata: Mapping[str, str] | None = None,
        content_type: str = "",
    ) -> None:
        """A blob, or a new content for one; readers see the old one or the new one, never a part."""
        with self._lock:
            before = self.properties(name)
            facts = self._facts[name] = _Facts(
                before.created if before else time.time(), dict(metadata or {})
            )
            facts.content_type = content_type or facts.content_type
            path = self._path(name)
            with suppress(OSError):  # it is a folder, or what should be its folder is a file
                if path is not None:
                    path.parent.mkdir(parents=True, exist_ok=True)
                    part = self._scratch / f"{self.name}-{next(self._numbers)}"
                    part.write_bytes(content)
                    part.replace(path)
                    return
            self._odd[name] = (content, time.time())

    def renew(self, name: str) -> Path:
        """Replace a blob by an empty one to append to, created later, to the second."""
        with self._lock:
            before = self._facts.get(name)
            self.delete(name)
            self.write(name, b"", content_type="text/plain")
            if before is not None:
                self._facts[name].created = max(self._facts[name].created, before.created + 1)
            return self.folder / name

    def delete(self, name: str, *, keeps: bool = False) -> bool:
        """Delete a blob; return whether it existed. `keeps`: the account keeps deleted ones."""
        with self._lock:
            blob = self.properties(name)
            exists = blob is not None
            if blob is not None and keeps:
                self.deleted.append(blob)
            self._facts.pop(name, None)
            path = self._path(name)
            if self._odd.pop(name, None) is None and path is not None:
                with suppress(OSError):
                    path.unlink()
            return exists

    def set_metadata(self, name: str, metadata: Mapping[str, str]) -> None:
        """Set the metadata of an existing blob."""
        with self._lock:
            blob = self.properties(name)
            if blob is not None:
                self._facts[name] = _Facts(blob.created, dict(metadata), blob.content_type)

    def _files(self) -> Iterator[str]:
        for folder, _, files in os.walk(self.folder):
            for file in files:
                path = Path(folder, file)
                if path.is_file() and not path.is_symlink():  # mounts lack links
                    yield path.relative_to(self.folder).as_posix()

    def _path(self, name: str) -> Path | None:
        """Return the path of a blob; None for a name that must not become a path."""
        if name in self._odd:
            return None
        for part in name.split("/"):
            if (
                part in ("", ".", "..")
                or "\0" in part
                or len(os.fsencode(part)) > LONGEST_NAME_BYTES
            ):
                return None
        return self.folder / name


class Storage:
    """One storage account: all its containers."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._scratch = folder / "scratch"
        self._scratch.mkdir(parents=True)
        self._containers: dict[str, Container] = {}
        self._lock = threading.Lock()

    def create(self, name: str) -> Container:
        """Create a container, or return the existing one."""
        with self._lock:
            if name not in self._containers:
                self._containers[name] = Container(
                    name, self._folder / "containers" / name, self._scratch
                )
            return self._containers[name]

    def container(self, name: str) -> Container | None:
        """The container of this name."""
        with self._lock:
            return self._containers.get(name)
