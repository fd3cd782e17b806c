"""Check of a stored archive: its content must have the digest that its name promises.

The name alone proves little: a data folder can come with a repository. An archive that was checked is
not read again while size, times and place of the file are the same.
"""

from __future__ import annotations

import gzip
import hashlib
import sys
import tarfile
import time
from io import BufferedReader
from pathlib import Path
from typing import IO

from cloudtrain.runs.files import FILE_MODE, FOLDER_MODE
from cloudtrain.source.extract import DAMAGED, Header
from cloudtrain.source.tree import PAYLOAD_FOLDER, HashCache, SourceEntry, digest_entries, stamp
from cloudtrain_wire.bounded_files import open_regular_file

_BLOCK = 1 << 20
_NEVER = sys.maxsize
"""Time in ns after which a file counts as new; our own is known although it is."""


def holds(archive: Path, digest: str, cache_dir: Path | None = None) -> bool:
    """Return whether an archive can be read, and holds the source with this digest.

    `cache_dir`: folder of remembered checks.
    """
    cache = HashCache(cache_dir, str(archive), time.time_ns())
    try:
        with open_regular_file(archive, follow=False) as file:
            info = archive.lstat()
            actual = cache.get(archive.name, stamp(info)) or _digest_of(file)
    except (OSError, *DAMAGED):
        return False

    cache.put(archive.name, stamp(info), info, actual)
    cache.save()
    return actual == digest


def remember(archive: Path, digest: str, cache_dir: Path | None) -> None:
    """Remember an archive that this process has written itself."""
    info = archive.lstat()
    cache = HashCache(cache_dir, str(archive), _NEVER)
    cache.put(archive.name, stamp(info), info, digest)
    cache.save()


def packed_entries(archive: Path) -> list[SourceEntry]:
    """Return the entries of a stored archive that are below the source folder.

    Raise one of DAMAGED, or OSError, if it cannot be read to its end.
    """
    with open_regular_file(archive, follow=False) as file:
        entries = _entries_of(file) or []

    return [entry for entry in entries if not entry.path.startswith(f"{PAYLOAD_FOLDER}/")]


def _digest_of(file: IO[bytes]) -> str:
    """Return the digest of the source in an archive; "" for a foreign one."""
    entries = _entries_of(file)
    if entries is None:
        return ""

    return digest_entries(entries)


def _entries_of(file: IO[bytes]) -> list[SourceEntry] | None:
    """Return all entries of an archive; None for a foreign one."""
    entries: list[SourceEntry] = []
    with (
        gzip.open(file) as stream,
        tarfile.open(fileobj=stream, mode="r:", tarinfo=Header) as tar,
    ):
        for member in tar:
            entry = _entry(tar, member)
            if entry is None or (entries and entry.path <= entries[-1].path):
                return None

            entries.append(entry)

        while stream.read(_BLOCK):  # the checksum is at the very end
            pass

    return entries


def _entry(tar: tarfile.TarFile, member: tarfile.TarInfo) -> SourceEntry | None:
    """Return an entry as a scan would; None for what no scan archives."""
    if "\n" in member.name or member.mode not in (FILE_MODE, FOLDER_MODE):
        return None

    if member.issym():
        digest = hashlib.sha256(member.linkname.encode()).hexdigest()
        return SourceEntry(member.name, 0, executable=False, sha256=digest, link=member.linkname)

    content = tar.extractfile(member) if member.isreg() and not member.issparse() else None
    if not isinstance(content, BufferedReader):
        return None

    digest = hashlib.file_digest(content, "sha256").hexdigest()
    executable = member.mode == FOLDER_MODE
    return SourceEntry(member.name, member.size, executable=executable, sha256=digest)
