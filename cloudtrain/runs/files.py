"""Private files of the data folder: locked while written, read in blocks; and their JSON."""

from __future__ import annotations

import errno
import json
import os
import stat
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Protocol

from cloudtrain.errors import CloudtrainError, RunExists, StorageError
from cloudtrain_job import to_json
from cloudtrain_wire.file_locks import locked

FOLDER_MODE = 0o700
FILE_MODE = 0o600
OTHERS_MASK = 0o077
"""Permissions of group and others, all removed."""

_PRIVATE_NAMES = ("runs", "sources", "cache", "leftovers", "index.jsonl", "rehearsals.jsonl")

BLOCK_BYTES = 1 << 16
MAX_LINE_BYTES = 1 << 20
"""Longer lines are cut off here."""

DATA_DIR_HINT = "set CLOUDTRAIN_DATA_DIR to a folder that can be written"


def make_private_folder(folder: Path) -> None:
    """Make a folder and its parents, readable only by this user. May raise OSError."""
    missing = []
    while not folder.exists():  # below a file the disk says what is wrong
        missing.append(folder)
        folder = folder.parent

    for folder in reversed(missing):
        folder.mkdir(FOLDER_MODE, exist_ok=True)


def bytes_of(path: Path) -> int:
    """Return the bytes of a file, or of all files below a folder; a file of several names is one."""
    sizes = {}
    for top, _, names in os.walk(path):
        for name in names:
            with suppress(OSError):  # removed meanwhile
                info = os.lstat(f"{top}/{name}")
                sizes[info.st_dev, info.st_ino] = info.st_size

    if not sizes and not path.is_dir():
        with suppress(OSError):
            return os.lstat(path).st_size

    return sum(sizes.values())


def sync_folder(folder: Path) -> None:
    """Flush the names of a folder's files to the disk. May raise OSError."""
    if sys.platform == "win32":  # which opens no folders
        return

    fd = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def private_opener(path: str, flags: int) -> int:
    """Opener for `open` that creates files only this user can read."""
    return os.open(path, flags, FILE_MODE)


def restrict_permissions(data_dir: Path) -> None:
    """Remove permissions of others on files of this user, left by earlier versions."""
    if sys.platform == "win32":  # which has access lists
        return

    for name in _PRIVATE_NAMES:
        with suppress(OSError):  # missing, or on a disk without permissions
            status = os.lstat(data_dir / name)
            mode = stat.S_IMODE(status.st_mode)
            if (
                mode & OTHERS_MASK
                and status.st_uid == os.geteuid()
                and not stat.S_ISLNK(status.st_mode)
            ):
                (data_dir / name).chmod(mode & ~OTHERS_MASK)


class Blocks(Protocol):
    """A file that is read in blocks."""

    def seek(self, offset: int, whence: int = 0, /) -> int:
        """Go to a byte offset and return it."""

    def read(self, size: int, /) -> bytes:
        """Return the next bytes; empty at the end."""


def read_lines(
    file: Blocks, offset: int, max_line_bytes: int = MAX_LINE_BYTES
) -> Iterator[tuple[bytes, int]]:
    """Yield the complete lines after a byte offset, each with the offset after it."""
    for block, behind in read_blocks(file, offset, max_line_bytes):
        offset = behind - len(block)
        for line in block[:-1].split(b"\n"):
            offset += len(line) + 1
            yield line[:max_line_bytes], offset


def read_blocks(
    file: Blocks, offset: int, max_line_bytes: int = MAX_LINE_BYTES, *, unfinished: bool = False
) -> Iterator[tuple[bytes, int]]:
    """Yield the complete lines after a byte offset, many at once, with the offset after them.

    The first one may be longer than the maximum, by at most a block. `unfinished`: also yield what
    the file has after its last line end, with one.
    """
    file.seek(offset)
    tail = b""

    while block := file.read(BLOCK_BYTES):
        offset += len(block)
        if len(tail) == max_line_bytes:
            block = b"".join(block.partition(b"\n")[1:])

        lines, end, tail = (tail + block).rpartition(b"\n")
        if end:
            yield lines + end, offset - len(tail)

        tail = tail[:max_line_bytes]

    if unfinished and tail:
        yield tail + b"\n", offset


def read_lines_backward(
    file: Blocks, end: int, max_line_bytes: int = MAX_LINE_BYTES
) -> Iterator[bytes]:
    """Yield the complete lines before a byte offset, the last one first."""
    position = end - 1
    tail = b""

    while position > 0:
        size = min(BLOCK_BYTES, position)
        position -= size
        file.seek(position)
        tail, *lines = (file.read(size) + tail).split(b"\n")

        for line in reversed(lines):
            yield line[:max_line_bytes]

        tail = tail[:max_line_bytes]

    if end > 0:
        yield tail


def end_of_lines(file: Blocks) -> int:
    """Return the byte offset after the last complete line, or 0."""
    position = file.seek(0, os.SEEK_END)
    while position > 0:
        size = min(BLOCK_BYTES, position)
        position -= size
        file.seek(position)
        newline = file.read(size).rfind(b"\n")

        if newline >= 0:
            return position + newline + 1

    return 0


def strict_json(value: object, **options: Any) -> str:
    """Return JSON text. NaN and infinities, which JSON lacks (RFC 8259), become null."""
    return to_json(value, ensure_ascii=False, **options)


def as_text(document: object) -> str:
    """Return a JSON document as stored in the run folder, indented."""
    return json.dumps(document, indent=2, ensure_ascii=False) + "\n"


def replace_text(file: Path, text: str) -> None:
    """Write a private file atomically. May raise OSError."""
    temporary = file.with_name(f".{file.name}.{os.getpid()}")
    with open(temporary, "wb", opener=private_opener) as draft:
        draft.write(encode_json(text))

    temporary.replace(file)


@contextmanager
def storing(path: Path, hint: str = DATA_DIR_HINT) -> Iterator[None]:
    """Turn an OSError into a StorageError with the file name. `hint`: another place to write."""
    try:
        yield
    except CloudtrainError:
        raise
    except OSError as error:
        where = error.filename or path
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            hint = f"free some space there, or {hint}"
        raise StorageError(f"{where}: {error.strerror or error}", hint=hint) from None


def encode_json(text: str) -> bytes:
    """Return JSON text as UTF-8. Lone surrogates stay JSON escapes."""
    return text.encode("utf-8", "backslashreplace")


def append_lines(path: Path, lines: str, *, durable: bool) -> None:
    """Append whole JSON lines under a lock. Raise StorageError if the disk refuses.

    `durable`: flush to the disk before returning.
    """
    with storing(path), locked(path, flags=os.O_RDWR | os.O_APPEND) as file:
        size = os.fstat(file).st_size
        # A writer that died left an incomplete line: the next one begins on a new one.
        is_incomplete = size > 0 and _byte_at(file, size - 1) != b"\n"
        data = encode_json(lines)
        if is_incomplete:
            data = b"\n" + data

        if os.write(file, data) < len(data):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        if durable:
            os.fsync(file)


def _byte_at(file: int, offset: int) -> bytes:
    os.lseek(file, offset, os.SEEK_SET)
    return os.read(file, 1)


@contextmanager
def new_folder(path: Path, documents: Mapping[str, str], kind: str) -> Iterator[Path]:
    """Yield a draft folder with these documents, renamed to `path` at the end of the block.

    `kind` is "run" or "sweep", for messages. Raise RunExists if the path is taken, StorageError if
    the disk refuses.
    """
    draft = path.with_name(f".{path.name}.{os.urandom(4).hex()}")
    with storing(path):
        make_private_folder(draft)
        try:
            for name, text in documents.items():
                with open(draft / name, "wb", opener=private_opener) as file:
                    file.write(encode_json(text))

            yield draft
            draft.rename(path)
        except OSError as error:
            import shutil

            shutil.rmtree(draft, ignore_errors=True)
            if error.errno in (errno.ENOTEMPTY, errno.EEXIST):
                raise RunExists(
                    f"{kind} {path.name} exists already", hint=f"cloudtrain status {path.name}"
                ) from None

            raise
