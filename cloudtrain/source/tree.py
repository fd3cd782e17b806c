"""Result of a scan: the files of the archive, their hashes and digest, and limits of their size."""

from __future__ import annotations

import hashlib
import os
import posixpath
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import nlargest
from pathlib import Path
from typing import Any, NamedTuple

from cloudtrain.errors import SourceError
from cloudtrain.runs.files import make_private_folder, private_opener
from cloudtrain_wire.bounded_files import NOFOLLOW, PLAIN, read_regular_file
from cloudtrain_wire.sizes import format_size

Progress = Callable[[int, int], None]
"""Receiver of (files done, all files): about a hundred calls for a large tree."""

PAYLOAD_FOLDER = ".cloudtrain"
"""Top folder of our files in the archive; one of this name in the source is left out."""

WARN_BYTES = 100_000_000
LIMIT_BYTES = 1_000_000_000

_SIZE_ADVICE = "add what the job does not need to .cloudtrainignore, and hand data over as an input"

_MAX_HOPS = 40

# A file that changed this shortly before it was read may change again and keep its timestamps: file
# systems tick every few milliseconds, some of them every two seconds.
_RACY_NS = 2_000_000_000
_CACHE_VERSION = 3
_BLOCK = 1 << 20
MAX_CACHE_BYTES = 1 << 30
"""Maximum size of a cache: the hashes of some millions of files."""


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
    secrets: tuple[str, ...] = ()
    """Entries left out as likely secrets; folders end with a slash."""
    left_out: Mapping[str, str] = field(default_factory=dict, compare=False)
    """Rule that leaves out each other entry, by path; of a folder all contents too."""

    @property
    def files_count(self) -> int:
        """Files and links, the payload included."""
        return len(self.files)

    @property
    def own_entries(self) -> tuple[SourceEntry, ...]:
        """Entries of the source folder itself, without the payload."""
        return tuple(entry for entry in self.files if entry.path not in self.payload)


def digest_entries(entries: Iterable[SourceEntry]) -> str:
    """Return the digest of entries that are sorted by path."""
    lines = ["cloudtrain source 1\n"]
    for entry in entries:
        if entry.link is not None:
            kind = "link"
        elif entry.executable:
            kind = "exec"
        else:
            kind = "file"

        lines.append(f"{kind} {entry.sha256} {entry.path}\n")

    return hashlib.sha256("".join(lines).encode()).hexdigest()


def check_size(tree: SourceTree, limit_bytes: int = LIMIT_BYTES) -> str | None:
    """Return a warning above `WARN_BYTES`. Raise SourceError above `limit_bytes`."""
    sizes = {entry.path: entry.size for entry in tree.own_entries}
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


def _sizes_in_words(root: Path, sizes: Mapping[str, int], and_limit: str = "") -> str:
    largest = nlargest(3, sizes, key=lambda path: sizes[path])
    listed = ", ".join(f"{path} ({format_size(sizes[path])})" for path in largest)
    total = format_size(sum(sizes.values()))

    return (
        f"the source folder {root} is {total} in {len(sizes)} files{and_limit}; the largest:"
        f" {listed}"
    )


def read_link(root: str, path: str) -> str:
    """Return the target of the link at `path`; one below `root` is made relative.

    Raise OSError if it is not a link.
    """
    target = os.readlink(f"{root}/{path}").replace(os.sep, "/")  # noqa: PTH115
    return relative_target(path, target, (root, os.path.realpath(root)))


def relative_target(path: str, target: str, roots: Sequence[str]) -> str:
    """Return the target of the link `path`, made relative if it is below one of the `roots`.

    `roots`: names of the tree's top where the link was made.
    """
    if target.startswith("/"):
        plain = posixpath.normpath(target)
        for top in (root.rstrip("/") for root in roots):
            if plain == top or plain.startswith(top + "/"):
                return posixpath.relpath(plain, posixpath.dirname(f"{top}/{path}"))

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


def read_content(
    path: str, size: int, sink: Callable[[bytes], object] | None = None, *, follow: bool = False
) -> str | None:
    """Return the sha256 of a file in hex digits, or None if it does not have exactly `size` bytes.

    Raise OSError if it is unreadable.

    `sink` receives the content, never more than `size` + 1 bytes of it. `follow`: the path may be a
    link.
    """
    digest = hashlib.sha256()
    remaining = size
    # The file may have become a FIFO or a link since it was listed: neither block nor follow.
    flags = os.O_RDONLY | PLAIN
    if not follow:
        flags |= NOFOLLOW

    fd = os.open(path, flags)

    try:
        # Read one byte more than expected, to notice a file that has grown.
        while remaining >= 0 and (block := os.read(fd, min(remaining + 1, _BLOCK))):
            remaining -= len(block)
            digest.update(block)

            if sink is not None:
                sink(block)
    finally:
        os.close(fd)

    if remaining:
        return None

    return digest.hexdigest()


def stamp(info: os.stat_result) -> str:
    """Return the stamp of a file: an unchanged file has the same one."""
    return f"{info.st_size} {info.st_mtime_ns} {info.st_ctime_ns} {info.st_ino} {info.st_dev}"


def is_settled(info: os.stat_result, started: int) -> bool:
    """Return whether a later change of a file shows in its stamp. `started`: clock before, in ns."""
    return max(info.st_mtime_ns, info.st_ctime_ns) + _RACY_NS < started


class HashCache:
    """Hashes of the last scan and of this one. `started`: clock before this scan, in ns."""

    def __init__(self, cache_dir: Path | None, root: str, started: int) -> None:
        self._root = root
        self._started = started
        self._file = None
        self._known: dict[str, str] = {}
        self._fresh: dict[str, str] = {}
        """Path -> stamp and sha256, as `stamp(...) + " " + digest`."""

        if cache_dir is not None:
            self._file = cache_dir / f"{hashlib.sha256(os.fsencode(root)).hexdigest()[:32]}.json"
            content = _read(self._file)
            if content.get("head") == _head(root):
                self._known = content["files"]

    def get(self, path: str, file_stamp: str) -> str | None:
        """Return the sha256 of the file at `path` if its stamp is the same."""
        before, _, digest = self._known.get(path, "").rpartition(" ")
        return digest if before == file_stamp else None

    def put(self, path: str, file_stamp: str, info: os.stat_result, digest: str) -> None:
        """Remember a file for the next scan, unless it is too new to notice a later change."""
        if is_settled(info, self._started):
            self._fresh[path] = f"{file_stamp} {digest}"

    def save(self) -> None:
        """Write the hashes of this scan if they are new. An unwritable folder is not an error."""
        if self._file is None or self._fresh == self._known:
            return

        import json

        content = {"head": _head(self._root), "files": self._fresh}
        body = json.dumps(content, separators=(",", ":")).encode()
        temporary = self._file.with_name(f"{self._file.name}.{os.urandom(8).hex()}.tmp")

        try:
            make_private_folder(self._file.parent)
            try:
                with open(temporary, "wb", opener=private_opener) as file:
                    file.write(_checksum_line(body) + body)

                temporary.replace(self._file)
            finally:
                temporary.unlink(missing_ok=True)
        except OSError:
            pass


def _read(file: Path) -> dict[str, Any]:
    """Return the content of a cache file; empty if it is damaged."""
    try:
        data = read_regular_file(file, MAX_CACHE_BYTES)
    except OSError:
        return {}

    seal = data[:65]
    body = data[65:]
    if not body or seal != _checksum_line(body):
        return {}

    import json

    content: dict[str, Any] = json.loads(body)
    return content


def _checksum_line(body: bytes) -> bytes:
    return hashlib.sha256(body).hexdigest().encode() + b"\n"


def _head(root: str) -> list[object]:
    """Return the identity of a cache."""
    return [_CACHE_VERSION, os.fsencode(root).hex()]
