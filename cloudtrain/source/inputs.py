"""Local folder or file as an input: every file, regardless of ignore files, and its problems."""

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
from cloudtrain.source.tree import HashCache, read_content, stamp

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
    """Return all files of an input. Links are followed, as by programs that run here."""
    input_listing = InputListing([], [])
    with suppress(OSError):  # the walk below reports it
        info = os.stat(place)  # noqa: PTH116
        if stat.S_ISREG(info.st_mode):
            input_listing.files.append(InputFile(Path(place).name, place, info))
            return input_listing

    todo = [("", place, frozenset({os.path.realpath(place)}))]
    while todo:
        prefix, folder, above = todo.pop()
        try:
            with os.scandir(folder) as listing:
                entries = sorted(listing, key=lambda entry: entry.name)
        except OSError as error:
            input_listing.problems.append(f"{prefix or folder} cannot be read ({error.strerror})")
            continue

        for entry in entries:
            if _is_folder(entry):
                real = os.path.realpath(entry.path)
                if real in above:
                    problem = f"{prefix}{entry.name} is a link to a folder around it"
                    input_listing.problems.append(problem)
                else:
                    todo.append((f"{prefix}{entry.name}/", entry.path, above | {real}))
            else:
                _take(entry, prefix + entry.name, input_listing)

    return input_listing


def input_problem(place: str) -> str | None:
    """Return why an input cannot be brought along, or is empty; None if it is fine."""
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
    files: Sequence[InputFile], place: str, cache_dir: Path
) -> tuple[str, dict[str, str]]:
    """Return a digest of an input, and the sha256 of each file by path.

    Unchanged files are not read again. Raise SourceError if a file cannot be read or changes
    meanwhile.
    """
    cache = HashCache(cache_dir, f"{place}/.", time.time_ns())
    digests = {}
    for file in files:
        file_stamp = stamp(file.info)
        digest = cache.get(file.path, file_stamp)
        if digest is None:
            try:
                digest = read_content(file.place, file.info.st_size, follow=True)
            except OSError as error:
                raise SourceError(f"{file.place} cannot be read: {error.strerror}") from None

        if digest is None:
            raise SourceError(
                f"{file.place} changed while it was read",
                hint="wait until it is written, then run again",
            )

        cache.put(file.path, file_stamp, file.info, digest)
        digests[file.path] = digest

    cache.save()
    lines = [f"{digests[path]} {path}\n" for path in sorted(digests)]
    return hashlib.sha256("".join(["cloudtrain input 1\n", *lines]).encode()).hexdigest(), digests


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link that leads to itself
        return False


def _take(entry: os.DirEntry[str], path: str, listing: InputListing) -> None:
    try:
        path.encode()
        info = entry.stat()
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
