"""Hashes of files, with a cache of unchanged files between scans.

One cache file per folder. It is only a shortcut: if it is missing, damaged or unwritable, files
are read again.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from cloudtrain.runs.files import make_private_folder, private_opener
from cloudtrain_launcher.packages.bounded_files import read_regular_file

# A file that changed this shortly before it was read may change again and keep its timestamps: file
# systems tick every few milliseconds, some of them every two seconds.
_RACY_NS = 2_000_000_000
_VERSION = 3
_BLOCK = 1 << 20
MAX_CACHE_BYTES = 1 << 30
"""Maximum size of a cache: the hashes of some millions of files."""
# A file may turn into a FIFO or a link between being listed and being opened: neither block nor
# follow.
_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK


def read_content(
    path: str, size: int, sink: Callable[[bytes], object] | None = None, *, follow: bool = False
) -> str | None:
    """Return the sha256 of a file in hex digits, or None if it does not have exactly `size` bytes.

    Raise OSError if it is unreadable.

    `sink` receives the content, never more than `size` + 1 bytes of it. `follow`: the path may be a
    link.
    """
    digest = hashlib.sha256()
    remaining = size
    fd = os.open(path, _FLAGS if follow else _FLAGS | os.O_NOFOLLOW)
    try:
        # Read one byte more than expected, to notice a file that has grown.
        while remaining >= 0 and (block := os.read(fd, min(remaining + 1, _BLOCK))):
            remaining -= len(block)
            digest.update(block)
            if sink is not None:
                sink(block)
    finally:
        os.close(fd)
    return None if remaining else digest.hexdigest()


def stamp(info: os.stat_result) -> str:
    """Return the stamp of a file: an unchanged file has the same one."""
    return f"{info.st_size} {info.st_mtime_ns} {info.st_ctime_ns} {info.st_ino} {info.st_dev}"


class HashCache:
    """Hashes of the last scan and of this one. `started`: clock before this scan, in ns."""

    def __init__(self, cache_dir: Path | None, root: str, started: int) -> None:
        self._root = root
        self._started = started
        self._file = None
        self._known: dict[str, str] = {}
        self._fresh: dict[str, str] = {}
        """Path -> stamp and sha256, as `stamp(...) + " " + digest`."""
        if cache_dir is not None:
            self._file = cache_dir / f"{hashlib.sha256(os.fsencode(root)).hexdigest()[:32]}.json"
            content = _read(self._file)
            if content.get("head") == _head(root):
                self._known = content["files"]

    def get(self, path: str, file_stamp: str) -> str | None:
        """Return the sha256 of the file at `path` if its stamp is the same."""
        before, _, digest = self._known.get(path, "").rpartition(" ")
        return digest if before == file_stamp else None

    def put(self, path: str, file_stamp: str, info: os.stat_result, digest: str) -> None:
        """Remember a file for the next scan, unless it is too new to notice a later change."""
        if max(info.st_mtime_ns, info.st_ctime_ns) + _RACY_NS < self._started:
            self._fresh[path] = f"{file_stamp} {digest}"

    def save(self) -> None:
        """Write the hashes of this scan if they are new. An unwritable folder is not an error."""
        if self._file is None or self._fresh == self._known:
            return
        import json

        content = {"head": _head(self._root), "files": self._fresh}
        body = json.dumps(content, separators=(",", ":")).encode()
        temporary = self._file.with_name(f"{self._file.name}.{os.urandom(8).hex()}.tmp")
        try:
            make_private_folder(self._file.parent)
            try:
                with open(temporary, "wb", opener=private_opener) as file:
                    file.write(_checksum_line(body) + body)
                temporary.replace(self._file)
            finally:
                temporary.unlink(missing_ok=True)
        except OSError:
            pass


def _read(file: Path) -> dict[str, Any]:
    """Return the content of a cache file; empty if it is damaged."""
    try:
        data = read_regular_file(file, MAX_CACHE_BYTES)
    except OSError:
        return {}
    seal = data[:65]
    body = data[65:]
    if not body or seal != _checksum_line(body):
        return {}
    import json

    content: dict[str, Any] = json.loads(body)
    return content


def _checksum_line(body: bytes) -> bytes:
    return hashlib.sha256(body).hexdigest().encode() + b"\n"


def _head(root: str) -> list[object]:
    """Return the identity of a cache."""
    return [_VERSION, os.fsencode(root).hex()]
