"""Bounded reads of regular files that somebody else wrote. Standard library only.

A name in a job's folder may be a FIFO, or a link to a device or to a file of any size. The client
shares this module.
"""

from __future__ import annotations

import errno
import os
import stat
import sys
from io import BufferedReader
from pathlib import Path

MAX_BYTES = 16 << 20
"""Default limit for a file that people write."""

if sys.platform == "win32":
    PLAIN = os.O_BINARY
    NOFOLLOW = 0
else:
    PLAIN = os.O_NONBLOCK
    NOFOLLOW = os.O_NOFOLLOW
"""Flags of `os.open`: for unchanged bytes, without a wait for the writer of a FIFO; and not by a link."""

_BLOCK_BYTES = 1 << 20

_KINDS = {
    stat.S_IFIFO: "a FIFO",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


class FileTooLarge(OSError):
    """The file exceeds the limit of its reader."""


def open_regular_file(path: str | Path, *, follow: bool = True) -> BufferedReader:
    """Open a regular file for reading. Raise OSError at once for a FIFO or a device.

    `follow`: whether the path may be a link.
    """
    flags = os.O_RDONLY | PLAIN
    file = os.open(path, flags if follow else flags | NOFOLLOW)
    kind = stat.S_IFMT(os.fstat(file).st_mode)
    if kind == stat.S_IFREG:
        return os.fdopen(file, "rb")

    os.close(file)
    if kind == stat.S_IFDIR:
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))

    description = _KINDS.get(kind, "something else")
    raise OSError(errno.EINVAL, f"Not a regular file but {description}", str(path))


def read_regular_file(path: str | Path, limit: int = MAX_BYTES, *, follow: bool = True) -> bytes:
    """Return the content of a regular file. Raise FileTooLarge above `limit` bytes, or OSError."""
    content = bytearray()

    with open_regular_file(path, follow=follow) as file:
        while len(content) <= limit and (
            block := file.read(min(_BLOCK_BYTES, limit + 1 - len(content)))
        ):
            content += block

    if len(content) > limit:
        raise FileTooLarge(errno.EFBIG, f"File too large (limit {limit:,} bytes)", str(path))

    return bytes(content)


def read_regular_text(path: str | Path, limit: int = MAX_BYTES, *, errors: str = "strict") -> str:
    """Return the text of a regular UTF-8 file, with any line ends and with or without a BOM.

    Raise OSError as `read_regular_file` does, UnicodeDecodeError if the file is not UTF-8.
    """
    text = read_regular_file(path, limit).decode("utf-8-sig", errors)
    return text.replace("\r\n", "\n").replace("\r", "\n")
