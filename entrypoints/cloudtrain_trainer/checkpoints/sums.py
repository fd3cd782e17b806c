"""Sums of a checkpoint's files. The large ones are not read again to be summed.

torch.save writes a zip archive without compression, with the CRC-32 of each record, such as the
values of a tensor. The sum of such a file is the SHA-256 of everything else in it, the CRC-32s
included: a changed byte changes the sum or no longer fits its CRC-32.
"""

from __future__ import annotations

import hashlib
import struct
from pathlib import Path
from zipfile import ZipFile

BLOCK_BYTES = 1 << 20
LOCAL_HEADER = struct.Struct("<26xHH")
"""Begins a record. Its last numbers are the lengths of the name and of the padding that follow."""


def digest_of(path: Path) -> str:
    """Return the SHA-256 digest of a file, 64 hex digits. OSError if it cannot be read."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        for block in iter(lambda: file.read(BLOCK_BYTES), b""):
            digest.update(block)

    return digest.hexdigest()


def digest_without_records(path: Path) -> str:
    """Return the SHA-256 digest of a file of torch.save without the content of its records.

    BadZipFile or another error if it is no such file.
    """
    digest = hashlib.sha256()
    with ZipFile(path) as archive, path.open("rb") as file:
        for record in archive.infolist():
            header = file.read(record.header_offset + LOCAL_HEADER.size - file.tell())
            lengths = LOCAL_HEADER.unpack(header[-LOCAL_HEADER.size :])
            digest.update(header + file.read(sum(lengths)))
            file.seek(record.file_size, 1)

        digest.update(file.read())

    return digest.hexdigest()


def fits(path: Path, digest: str, *, is_of_file: bool) -> bool:
    """Return whether a file has this digest; BadZipFile or another error if it is no archive.

    `is_of_file`: the digest is of the whole file, as of every file that torch.save did not write.
    """
    if is_of_file or path.suffix != ".pt":
        return digest_of(path) == digest

    with ZipFile(path) as archive:
        return archive.testzip() is None and digest_without_records(path) == digest
