"""Local folder or file as an input: every file, regardless of ignore files, and its problems.

A job in a cloud gets a copy of it, known by its content.
"""

from __future__ import annotations

import hashlib
import os
import stat
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple, Self

from cloudtrain.errors import SourceError
from cloudtrain.source.tree import HashCache, Progress, is_settled, read_content, stamp
from cloudtrain.source.walk import is_likely_secret

MAX_NAMED = 3
"""Maximum problems of an input in a message."""


class InputFile(NamedTuple):
    """File of an input."""

    path: str
    """Path below the input, with slashes."""
    place: str
    """Place on this machine; links are followed."""
    info: os.stat_result


class InputListing(NamedTuple):
    """Files of an input, and problems with others."""

    files: list[InputFile]
    problems: list[str]


def list_input(place: str) -> InputListing:
    """Return all files of an input. Links inside of it are followed, as by programs that run here."""
    input_listing = InputListing([], [])
    with suppress(OSError):  # the walk below reports it
        info = os.stat(place)  # noqa: PTH116
        if stat.S_ISREG(info.st_mode):
            input_listing.files.append(InputFile(Path(place).name, place, info))
            return input_listing

    top = os.path.realpath(place)
    todo = [("", place, frozenset({top}))]
    while todo:
        prefix, folder, above = todo.pop()
        try:
            with os.scandir(folder) as listing:
                entries = sorted(listing, key=lambda entry: entry.name)
        except OSError as error:
            input_listing.problems.append(f"{prefix or folder} cannot be read ({error.strerror})")
            continue

        for entry in entries:
            is_folder = _is_folder(entry)
            real = os.path.realpath(entry.path) if is_folder or entry.is_symlink() else ""
            if real and not Path(real).is_relative_to(top) and os.path.lexists(real):
                input_listing.problems.append(
                    f"{prefix}{entry.name} is a link that leaves the folder"
                )
            elif is_folder and is_likely_secret(prefix + entry.name, entry.name, True):
                problem = f"{prefix}{entry.name} is likely to hold secrets"
                input_listing.problems.append(problem)
            elif is_folder:
                if real in above:
                    problem = f"{prefix}{entry.name} is a link to a folder around it"
                    input_listing.problems.append(problem)
                else:
                    todo.append((f"{prefix}{entry.name}/", entry.path, above | {real}))
            else:
                _take(entry, prefix + entry.name, input_listing)

    return input_listing


def input_problem(place: str) -> str | None:
    """Return why an input cannot be sent to a cloud, or is empty; None if it is fine."""
    if not os.path.exists(place):  # noqa: PTH110  (false, not an error, for what no disk can hold)
        return f"no such file or folder: {place}"

    real = Path(os.path.realpath(place))
    if Path(os.path.realpath(Path("~").expanduser())).is_relative_to(real):
        return f"{place} holds your home folder: name the folder of the data alone"
    is_folder = real.is_dir()
    if is_likely_secret(str(real), real.name, is_folder) or any(
        is_likely_secret(str(folder), folder.name, True) for folder in real.parents
    ):
        return f"{place} is likely to hold secrets, which no input carries: use secrets"

    files, problems = list_input(place)
    if problems:
        more = ""
        if len(problems) > MAX_NAMED:
            more = f", and {len(problems) - MAX_NAMED} more"

        return f"{place}: {', '.join(problems[:MAX_NAMED])}{more}"

    if files:
        return None

    return f"{place} is empty: the job would run on nothing"


def is_empty(place: str) -> bool:
    """Return True if a folder holds neither a file nor a link to another folder."""
    if not os.path.isdir(place):  # noqa: PTH112
        return False
    for top, folders, names in os.walk(place):
        if names or any(os.path.islink(f"{top}/{folder}") for folder in folders):  # noqa: PTH114
            return False

    return True


def digest_input(
    files: Sequence[InputFile],
    place: str,
    cache_dir: Path,
    limit_bytes: int | None = None,
    progress: Progress | None = None,
) -> tuple[str, dict[str, str]]:
    """Return a digest of an input, and the sha256 of each file by path.

    Unchanged files are not read again. The digest is empty if more than `limit_bytes` are to be
    read. `progress` is called with files. Raise SourceError if a file cannot be read or changes
    meanwhile.
    """
    cache = HashCache(cache_dir, f"{place}/.", time.time_ns())
    if limit_bytes is not None:
        new_files = [file for file in files if cache.get(file.path, stamp(file.info)) is None]
        if sum(file.info.st_size for file in new_files) > limit_bytes:
            return "", {}

    digests: dict[str, str] = {}
    for file in files:
        file_stamp = stamp(file.info)
        digest = cache.get(file.path, file_stamp)
        if digest is None:
            try:
                digest = read_content(file.place, file.info.st_size, follow=True)
            except OSError as error:
                raise SourceError(f"{file.place} cannot be read: {error.strerror}") from None

        if digest is None:
            raise _changed(file.place, "read")

        cache.put(file.path, file_stamp, file.info, digest)
        digests[file.path] = digest
        if progress is not None:
            progress(len(digests), len(files))

    cache.save()
    lines = [f"{digests[path]} {path}\n" for path in sorted(digests)]
    return hashlib.sha256("".join(["cloudtrain input 1\n", *lines]).encode()).hexdigest(), digests


class SentFile:
    """Content of a file on its way: read from its start to its end, and never another content.

    SourceError is raised instead of the last bytes if the file has another stamp or, if it was new
    when it was listed, another sha256. Without `seek`, SDKs read it in order.
    """

    def __init__(
        self, file: InputFile, sha256: str, listed: int, count: Callable[[int], None]
    ) -> None:
        """Open a file. `listed`: clock before it was listed, in ns; `count` gets bytes of a read."""
        self.size = file.info.st_size
        self._place = file.place
        self._stamp = stamp(file.info)
        self._sha256 = "" if is_settled(file.info, listed) else sha256
        self._count = count
        try:
            self._file = open(file.place, "rb")  # noqa: SIM115  (closed by `close`)
        except OSError as error:
            raise SourceError(f"{file.place} cannot be read: {error.strerror}") from None
        self.rewound()

    def rewound(self) -> Self:
        """Go back to the start, to send it with other credentials."""
        self._file.seek(0)
        self._remaining = self.size
        self._digest = hashlib.sha256()
        return self

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def read(self, size: int | None = -1) -> bytes:
        """Return the next bytes, at most `size`; None and -1: the rest."""
        if size is None or size < 0:
            size = self._remaining

        size = min(size, self._remaining)
        data = self._file.read(size)
        self._remaining -= len(data)
        if self._sha256:
            self._digest.update(data)

        if len(data) < size or (not self._remaining and not self._is_unchanged()):
            raise _changed(self._place, "uploaded")

        self._count(len(data))
        return data

    def _is_unchanged(self) -> bool:
        if self._sha256:
            return self._digest.hexdigest() == self._sha256

        return stamp(os.fstat(self._file.fileno())) == self._stamp


def _changed(place: str, meanwhile: str) -> SourceError:
    return SourceError(
        f"{place} changed while it was {meanwhile}",
        hint="wait until it is written, then run again",
    )


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link that leads to itself
        return False


def _take(entry: os.DirEntry[str], path: str, listing: InputListing) -> None:
    try:
        path.encode()
        info = os.stat(entry.path)  # noqa: PTH116  (an entry lacks the inode on Windows)
    except UnicodeEncodeError:
        listing.problems.append(f"{path!a} has a name that is not valid UTF-8")
    except OSError as error:
        listing.problems.append(f"{path} {_why_unreadable(entry, error)}")
    else:
        if stat.S_ISREG(info.st_mode):
            listing.files.append(InputFile(path, entry.path, info))
        else:
            listing.problems.append(f"{path} is neither a file nor a folder")


def _why_unreadable(entry: os.DirEntry[str], error: OSError) -> str:
    if not isinstance(error, FileNotFoundError):
        return f"cannot be read ({error.strerror})"
    try:
        return f"is a broken link ({os.readlink(entry.path)})"  # noqa: PTH115
    except OSError:
        return "vanished while the input was listed"
