"""Extraction of the .tar.gz of a job's results. The archive is not trusted.

It is extracted whole, or there is an error. Entries that cannot be kept (devices, links to outside)
are named and left out, and sparse files stay sparse: tarfile's own extraction does neither.
"""

from __future__ import annotations

import errno
import gzip
import shutil
import tarfile
import zlib
from collections.abc import Iterator, Sequence
from io import BufferedIOBase
from pathlib import Path
from typing import Any, Self

from cloudtrain.errors import StorageError
from cloudtrain.source.results import Note, Results
from cloudtrain_wire.sizes import format_size

_BLOCK = 1 << 20

MAX_RATIO = 100
FREE_BYTES = 10 * 10**9
"""Maximum extracted size in bytes, or MAX_RATIO times the archive, if that is larger."""

MAX_HEADER_BYTES = 1 << 16
"""Maximum size of an extended header, which is read into memory as a whole."""

ENTRY_BYTES = 4096
"""Size of an entry on most disks besides its content."""

_EXTENDED = (
    tarfile.XHDTYPE,
    tarfile.XGLTYPE,
    tarfile.SOLARIS_XHDTYPE,
    tarfile.GNUTYPE_LONGNAME,
    tarfile.GNUTYPE_LONGLINK,
)
_FILES = (tarfile.REGTYPE, tarfile.AREGTYPE, tarfile.CONTTYPE, tarfile.GNUTYPE_SPARSE)
_KINDS = {tarfile.FIFOTYPE: "a FIFO", tarfile.CHRTYPE: "a device", tarfile.BLKTYPE: "a device"}
DAMAGED = (
    tarfile.TarError,
    gzip.BadGzipFile,
    EOFError,
    zlib.error,
    ValueError,
    ArithmeticError,
    LookupError,
    RecursionError,
    MemoryError,
)


class Header(tarfile.TarInfo):
    """Header that raises an error if it is damaged; tarfile would end the archive there."""

    @classmethod
    def fromtarfile(cls, tar: tarfile.TarFile) -> Self:
        try:
            return super().fromtarfile(tar)
        except (tarfile.EOFHeaderError, tarfile.EmptyHeaderError):  # type: ignore[attr-defined]
            raise  # the end
        except tarfile.HeaderError as error:
            raise tarfile.ReadError(f"a damaged header: {error}") from None

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> Self:
        header = super().frombuf(buf, encoding, errors)
        if header.size < 0 or (header.type in _EXTENDED and header.size > MAX_HEADER_BYTES):
            raise tarfile.ReadError(f"a header that claims {header.size} bytes")
        return header


def extract(archive: Path, folder: Path, roots: Sequence[str], note: Note, name: str) -> bool:
    """Extract an archive into a new folder. Return True if it has any entry.

    `note` gets entries that are left out. `roots`: absolute names of the folder in the job.
    `name`: name of the archive in messages. Raise StorageError if the archive is damaged, names a
    path outside, or would become far larger than itself; the folder may then hold a part of it.
    Raise OSError if the disk refuses.
    """
    limit = _Limit(archive.stat().st_size, shutil.disk_usage(folder.parent).free)
    try:
        with (
            gzip.open(archive) as stream,
            tarfile.open(fileobj=stream, mode="r:", tarinfo=Header) as tar,
        ):
            results = Results(folder, roots, note)
            reached = -1
            for member in tar:
                # An extended header may claim this, and cause an endless loop.
                if member.size < 0 or tar.offset <= reached:
                    raise tarfile.ReadError(f"{member.name} has {member.size} bytes")

                reached = tar.offset
                limit.take(member.size + ENTRY_BYTES)
                _keep(stream, member, results)

                if stream.tell() > tar.offset:
                    raise tarfile.ReadError(f"{member.name} continues past its end")

            # The checksum is at the very end, after what tar reads.
            while block := stream.read(_BLOCK):
                limit.take(len(block))
    except DAMAGED as error:
        raise StorageError(
            f"{name}: the archive is damaged or hostile: {error}",
            hint="aws s3 cp brings it as it is",
        ) from None

    return results.finish()


class _Limit:
    """Limit of the extracted size of an archive."""

    def __init__(self, packed: int, free: int) -> None:
        self._limit = min(free, max(FREE_BYTES, MAX_RATIO * packed))
        self._full = self._limit == free
        self._packed = packed
        self._taken = 0

    def take(self, size: int) -> None:
        """Count bytes. Raise ValueError above the limit, OSError if the disk is too small."""
        self._taken += size
        if self._taken > self._limit and not self._full:
            raise ValueError(
                f"of {format_size(self._packed)} it would become more than"
                f" {format_size(self._limit)}"
            )

        if self._taken > self._limit:
            raise OSError(
                errno.ENOSPC,
                f"the archive would become more than the {format_size(self._limit)} free here",
            )


def _keep(stream: BufferedIOBase, member: tarfile.TarInfo, results: Results) -> None:
    path = _plain(member.name)
    if path is None:
        raise ValueError(f"{member.name!r} is not a path inside a folder")

    if member.type == tarfile.DIRTYPE:
        results.add_folder(path)
    elif not path:
        results.leave_out(path, "not a folder, but it has the folder's own name")
    elif member.type == tarfile.SYMTYPE:
        results.add_link(path, member.linkname)
    elif member.type == tarfile.LNKTYPE:
        results.add_hard_link(path, _plain(member.linkname) or member.linkname)
    elif member.type in _FILES:
        modified = None
        if 0 <= member.mtime < 1 << 33:
            modified = int(member.mtime * 1e9)

        executable = bool(member.mode & 0o100)
        results.add_file(
            path, _content(stream, member), executable=executable, modified_ns=modified
        )
    else:
        results.leave_out(
            path, f"{_KINDS.get(member.type, 'an entry of an unknown kind')}, not a file"
        )


def _content(stream: BufferedIOBase, member: tarfile.TarInfo) -> Iterator[bytes | int]:
    """Yield the blocks of a file, and the lengths of its holes if it is sparse."""
    stream.seek(member.offset_data)
    at = 0
    for start, length in _parts(member):
        if start < at or length < 0 or start + length > member.size:
            raise tarfile.ReadError(f"{member.name} has parts that are not in it")
        if start > at:
            yield start - at

        at = start
        while at < start + length:
            block = stream.read(min(_BLOCK, start + length - at))
            if not block:
                raise EOFError(f"{member.name} ends early")

            at += len(block)
            yield block

    if at < member.size:
        yield member.size - at


def _parts(member: tarfile.TarInfo) -> list[tuple[int, int]]:
    """Return start and length of each part of a file; between them are holes."""
    parts: Any = member.sparse
    if parts is None:
        return [(0, member.size)]

    return [part for part in parts if part[1]]


def _plain(name: str) -> str | None:
    """Return a member's path below the folder, without a leading slash; None if it leads outside."""
    parts = [part for part in name.split("/") if part not in ("", ".")]
    if ".." in parts or "\0" in name:
        return None

    return "/".join(parts)
