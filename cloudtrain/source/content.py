"""Reads a file once, in blocks, and tells the sha256 of what was read."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable

_BLOCK = 1 << 20
# A file may turn into a FIFO or a link between being listed and being opened: neither block nor follow.
_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK


def read_content(
    path: str, size: int, sink: Callable[[bytes], object] | None = None, *, follow: bool = False
) -> str | None:
    """sha256 (hex digits) of the file, None if it is not exactly `size` bytes; OSError if it is unreadable.

    `sink` receives the content, never more than `size` + 1 bytes of it. `follow`: the path may be a link.
    """
    digest = hashlib.sha256()
    left = size
    fd = os.open(path, _FLAGS if follow else _FLAGS | os.O_NOFOLLOW)
    try:
        # One byte more than is left is asked for, so that a file that has grown is noticed.
        while left >= 0 and (block := os.read(fd, min(left + 1, _BLOCK))):
            left -= len(block)
            digest.update(block)
            if sink is not None:
                sink(block)
    finally:
        os.close(fd)
    return None if left else digest.hexdigest()
