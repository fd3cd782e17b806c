"""Result of a scan: the files of the archive, their digest, and limits of their size."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from heapq import nlargest
from pathlib import Path
from typing import NamedTuple

from cloudtrain.errors import SourceError
from cloudtrain.units import format_size

Progress = Callable[[int, int], None]
"""Receiver of (files done, all files): about a hundred calls for a large tree."""

PAYLOAD_FOLDER = ".cloudtrain"
"""Top folder of our files in the archive; one of this name in the source is left out."""

WARN_BYTES = 100_000_000
LIMIT_BYTES = 1_000_000_000


class SourceEntry(NamedTuple):
    """One file or symbolic link of the archive."""

    path: str
    """Path in the archive, relative, `/` between its parts."""
    size: int
    """Bytes; 0 for a link."""
    executable: bool
    sha256: str
    """sha256 of the content (for a link: of its target) in hex digits."""
    link: str | None = None
    """Target of a symbolic link, relative to the link's folder; None for a file."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SourceTree:
    """Files of one scan, sorted by path."""

    root: Path
    files: tuple[SourceEntry, ...]
    payload: Mapping[str, Path]
    """Archive path -> file on disk, for the entries that are not below `root`."""
    digest: str
    """sha256 over path, mode and content of every entry: the same wherever the folder is copied to.
    """
    total_bytes: int
    secrets: tuple[str, ...] = ()
    """Entries left out as likely secrets; folders end with a slash."""

    @property
    def files_count(self) -> int:
        """Files and links, the payload included."""
        return len(self.files)

    @property
    def own(self) -> tuple[SourceEntry, ...]:
        """Entries of the source folder itself, without the payload."""
        return tuple(entry for entry in self.files if entry.path not in self.payload)


def digest_entries(entries: Iterable[SourceEntry]) -> str:
    """Return the digest of entries that are sorted by path."""
    lines = ["cloudtrain source 1\n"]
    for entry in entries:
        kind = "link" if entry.link is not None else "exec" if entry.executable else "file"
        lines.append(f"{kind} {entry.sha256} {entry.path}\n")
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def check_size(tree: SourceTree, limit_bytes: int = LIMIT_BYTES) -> str | None:
    """Return a warning above `WARN_BYTES`. Raise SourceError above `limit_bytes`."""
    sizes = {entry.path: entry.size for entry in tree.own}
    refuse_large(tree.root, sizes, limit_bytes)
    if sum(sizes.values()) <= WARN_BYTES:
        return None
    return f"{_sizes_in_words(tree.root, sizes)}; {_SIZE_ADVICE}"


def refuse_large(root: Path, sizes: Mapping[str, int], limit_bytes: int) -> None:
    """Raise SourceError if the files are too large together. `sizes`: in bytes, by path."""
    if sum(sizes.values()) > limit_bytes:
        message = _sizes_in_words(
            root, sizes, f", more than the limit of {format_size(limit_bytes)}"
        )
        raise SourceError(message, hint=_SIZE_ADVICE)


_SIZE_ADVICE = "add what the job does not need to .cloudtrainignore, and hand data over as an input"


def _sizes_in_words(root: Path, sizes: Mapping[str, int], and_limit: str = "") -> str:
    largest = nlargest(3, sizes, key=lambda path: sizes[path])
    listed = ", ".join(f"{path} ({format_size(sizes[path])})" for path in largest)
    total = format_size(sum(sizes.values()))
    return (
        f"the source folder {root} is {total} in {len(sizes)} files{and_limit}; the largest:"
        f" {listed}"
    )


_MAX_HOPS = 40


def read_link(root: str, path: str) -> str:
    """Return the target of the link at `path`; one below `root` is made relative.

    Raise OSError if it is not a link.
    """
    return relative_target(path, os.readlink(f"{root}/{path}"), (root, os.path.realpath(root)))  # noqa: PTH115


def relative_target(path: str, target: str, roots: Sequence[str]) -> str:
    """Return the target of the link `path`, made relative if it is below one of the `roots`.

    `roots`: names of the tree's top where the link was made.
    """
    if target.startswith("/"):
        plain = os.path.normpath(target)
        for top in (root.rstrip("/") for root in roots):
            if plain == top or plain.startswith(top + "/"):
                return os.path.relpath(plain, os.path.dirname(f"{top}/{path}"))  # noqa: PTH120
    return target


def link_problem(
    path: str,
    links: Mapping[str, str],
    files: Container[str],
    folders: Container[str],
    top: str = "the source folder",
) -> str | None:
    """Return why the link `path` leads to no file or folder of the tree, or None if it does.

    `top`: name of the tree in messages.
    """
    folder = path.split("/")[:-1]
    todo = _parts(links[path])
    hops = 0
    while todo:
        part = todo.pop()
        if part in (".", ""):
            continue
        if part == "/" or (part == ".." and not folder):
            return f"a link that leads out of {top} ({links[path]})"
        if part == "..":
            folder.pop()
            continue
        name = "/".join((*folder, part))
        if name in links:
            hops += 1
            if hops > _MAX_HOPS:
                return f"a link that leads in a circle ({links[path]})"
            todo += _parts(links[name])
        elif name in folders or (name in files and not todo):
            folder.append(part)
        else:
            return f"a broken link: {name} does not exist or is not in the archive"
    return None


def folders_of(paths: Mapping[str, object]) -> set[str]:
    """Return every folder that holds one of the paths, at any depth."""
    folders: set[str] = set()
    for path in paths:
        folder = path.rpartition("/")[0]
        while folder and folder not in folders:
            folders.add(folder)
            folder = folder.rpartition("/")[0]
    return folders


def _parts(target: str) -> list[str]:
    """Return the parts, last one first; an absolute target has "/" as its first part."""
    parts = target.split("/")
    if target.startswith("/"):
        parts[0] = "/"
    return parts[::-1]
