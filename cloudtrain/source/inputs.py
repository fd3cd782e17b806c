"""A local folder or file that is an input: every file of it, whatever ignore files say, and what
makes it unusable.
"""

from __future__ import annotations

import hashlib
import os
import stat
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from cloudtrain.errors import SourceError
from cloudtrain.source.hashes import HashCache, read_content, stamp

MAX_NAMED = 3
"""Of the problems of one input, in a message."""


class InputFile(NamedTuple):
    """One file of an input."""

    path: str
    """Below the input, `/` between its parts."""
    place: str
    """Where it is on this machine; a link is followed."""
    about: os.stat_result


class InputListing(NamedTuple):
    """What an input holds, and what of it cannot be brought along."""

    files: list[InputFile]
    problems: list[str]


def list_input(place: str) -> InputListing:
    """All files of an input, links followed: a program that reads it here follows them, too."""
    found = InputListing([], [])
    with suppress(OSError):  # the walk below reports it
        about = os.stat(place)  # noqa: PTH116
        if stat.S_ISREG(about.st_mode):
            found.files.append(InputFile(Path(place).name, place, about))
            return found
    todo = [("", place, frozenset({os.path.realpath(place)}))]
    while todo:
        prefix, folder, above = todo.pop()
        try:
            with os.scandir(folder) as listing:
                entries = sorted(listing, key=lambda entry: entry.name)
        except OSError as error:
            found.problems.append(f"{prefix or folder} cannot be read ({error.strerror})")
            continue
        for entry in entries:
            if _is_folder(entry):
                real = os.path.realpath(entry.path)
                if real in above:
                    found.problems.append(f"{prefix}{entry.name} is a link to a folder around it")
                else:
                    todo.append((f"{prefix}{entry.name}/", entry.path, above | {real}))
            else:
                _take(entry, prefix + entry.name, found)
    return found


def input_problem(place: str) -> str | None:
    """Why an input cannot be brought along, or would bring nothing; None when all is well."""
    found = list_input(place)
    if found.problems:
        more = (
            f", and {len(found.problems) - MAX_NAMED} more"
            if len(found.problems) > MAX_NAMED
            else ""
        )
        return f"{place}: {', '.join(found.problems[:MAX_NAMED])}{more}"
    return None if found.files else f"{place} is empty: the job would run on nothing"


def is_empty(place: str) -> bool:
    """Whether a folder holds no file at all; ends with the first one, or the first link to another
    folder.
    """
    if not os.path.isdir(place):  # noqa: PTH112
        return False
    for top, folders, names in os.walk(place):
        if names or any(os.path.islink(f"{top}/{folder}") for folder in folders):  # noqa: PTH114
            return False
    return True


def digest_input(
    files: Sequence[InputFile], place: str, cache_dir: Path
) -> tuple[str, dict[str, str]]:
    """A name for the content of an input, and sha256 of each file by path; unchanged files are not
    read again.

    SourceError if a file cannot be read or changes meanwhile.
    """
    cache = HashCache(cache_dir, f"{place}/.", time.time_ns())
    digests = {}
    for file in files:
        now = stamp(file.about)
        digest = cache.get(file.path, now)
        if digest is None:
            try:
                digest = read_content(file.place, file.about.st_size, follow=True)
            except OSError as error:
                raise SourceError(f"{file.place} cannot be read: {error.strerror}") from None
        if digest is None:
            raise SourceError(
                f"{file.place} changed while it was read",
                hint="wait until it is written, then run again",
            )
        cache.put(file.path, now, file.about, digest)
        digests[file.path] = digest
    cache.save()
    lines = [f"{digests[path]} {path}\n" for path in sorted(digests)]
    return hashlib.sha256("".join(["cloudtrain input 1\n", *lines]).encode()).hexdigest(), digests


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link that leads to itself
        return False


def _take(entry: os.DirEntry[str], path: str, found: InputListing) -> None:
    try:
        path.encode()
        about = entry.stat()
    except UnicodeEncodeError:
        found.problems.append(f"{path!a} has a name that is not valid UTF-8")
    except OSError as error:
        found.problems.append(f"{path} {_why_unreadable(entry, error)}")
    else:
        if stat.S_ISREG(about.st_mode):
            found.files.append(InputFile(path, entry.path, about))
        else:
            found.problems.append(f"{path} is neither a file nor a folder")


def _why_unreadable(entry: os.DirEntry[str], error: OSError) -> str:
    if not isinstance(error, FileNotFoundError):
        return f"cannot be read ({error.strerror})"
    try:
        return f"is a broken link ({os.readlink(entry.path)})"  # noqa: PTH115
    except OSError:
        return "vanished while the input was listed"
