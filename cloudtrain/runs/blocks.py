"""Lines of files that may be large, forwards and backwards: what is held at once does not grow with the file."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import IO

BLOCK_BYTES = 1 << 16
MAX_LINE_BYTES = 1 << 20
"""What a line has beyond this is left out."""


def open_file(path: Path) -> IO[bytes]:
    """An ordinary file, open for reading. OSError for a pipe, too, which would keep us waiting, and for a device."""
    file = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    if not stat.S_ISREG(os.fstat(file).st_mode):
        os.close(file)
        raise OSError(f"{path} is not a regular file")
    return open(file, "rb")


def read_file(path: Path) -> bytes:
    """All of an ordinary file. OSError for anything else."""
    with open_file(path) as file:
        return file.read()


def lines_from(file: IO[bytes], offset: int, longest: int = MAX_LINE_BYTES) -> Iterator[tuple[bytes, int]]:
    """The whole lines after a byte offset, without their ends; each with the offset behind it."""
    file.seek(offset)
    rest, left_out = b"", 0
    while block := file.read(BLOCK_BYTES):
        *lines, rest = (rest + block).split(b"\n")
        for line in lines:
            offset += len(line) + left_out + 1
            left_out = 0
            yield line[:longest], offset
        left_out += max(0, len(rest) - longest)
        rest = rest[:longest]


def lines_back(file: IO[bytes], end: int, longest: int = MAX_LINE_BYTES) -> Iterator[bytes]:
    """The whole lines before a byte offset at which a line ends, the last one first, without their ends."""
    place, rest = end - 1, b""
    while place > 0:
        size = min(BLOCK_BYTES, place)
        place -= size
        file.seek(place)
        rest, *lines = (file.read(size) + rest).split(b"\n")
        for line in reversed(lines):
            yield line[:longest]
        rest = rest[:longest]
    if end > 0:
        yield rest


def end_of_lines(file: IO[bytes]) -> int:
    """The offset behind the last whole line."""
    place = file.seek(0, os.SEEK_END)
    while place > 0:
        size = min(BLOCK_BYTES, place)
        place -= size
        file.seek(place)
        found = file.read(size).rfind(b"\n")
        if found >= 0:
            return place + found + 1
    return 0
