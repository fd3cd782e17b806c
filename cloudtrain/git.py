"""Tells the commit around a folder, and whether files differ from it, by reading .git itself.

No process is started and nothing is written, so an answer takes milliseconds and needs no git on the machine.
Nothing here is ever an error: what cannot be told (a damaged, split or sparse index, refs in a reftable, too much
to read) is None. Not looked at: untracked files, submodules, executable bits, variables such as GIT_DIR.
"""

from __future__ import annotations

import os
import re
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, NamedTuple

# More than this is not worth the wait at start-up: bytes of the index, bytes of files to be read again.
_LARGEST_INDEX = 50_000_000
_MOST_CONTENT = 100_000_000

_HASH = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
# Flags of an index entry; the upper half is there in versions 3 and 4 only.
_ASSUME_VALID, _EXTENDED, _STAGE, _LENGTH = 0x8000, 0x4000, 0x3000, 0x0FFF
_SKIP_WORKTREE, _INTENT_TO_ADD = 0x4000_0000, 0x2000_0000
_SUBMODULE = 0o160000
# Kinds of objects in a pack: a commit, and what differs from an object so many bytes before.
_COMMIT, _DELTA = 1, 6
_LONGEST_COMMIT = 1 << 16


@dataclass(frozen=True, slots=True)
class GitState:
    """What is checked out around a folder."""

    commit: str = ""
    """Empty outside git, before the first commit, and where it cannot be read."""
    dirty: bool | None = None
    """Whether any tracked file of the repository differs from the commit; None outside git or if it cannot be told."""


@dataclass(frozen=True, slots=True)
class _Repository:
    top: Path
    own: Path
    """HEAD and index; each worktree has its own."""
    common: Path
    """Refs and objects, shared by all worktrees."""


class _Entry(NamedTuple):
    """One file in the index. A tuple because there may be a hundred thousand."""

    mtime: int
    """In ns; this and `size` are the file's own, when git last saw it hold `blob`."""
    mode: int
    size: int
    blob: bytes
    flags: int
    name: bytes


class _Index(NamedTuple):
    entries: list[_Entry]
    tree: bytes | None
    """The name of the tree that these entries make, if git has kept it."""
    written: int
    """In ns."""


def git_state(folder: Path) -> GitState:
    """The commit checked out around a folder, and whether the repository's tracked files differ from it."""
    import struct
    import zlib

    commit = None
    try:
        repository = _find(os.path.realpath(folder))
        commit = _commit(repository) if repository else None
        if repository is None or commit is None:
            return GitState()
        return GitState(commit, _is_dirty(repository, commit))
    except (OSError, ValueError, IndexError, OverflowError, RecursionError, struct.error, zlib.error):
        return GitState(commit or "")  # damaged, or not ours to read


def _find(folder: str) -> _Repository | None:
    for top in (Path(folder), *Path(folder).parents):
        own = top / ".git"
        if is_file := own.is_file():  # a worktree or a submodule
            own = top / _text(own).removeprefix("gitdir:").strip()
        if (own / "HEAD").is_file():
            shared = own / "commondir"
            return _Repository(top, own, own / _text(shared) if shared.is_file() else own)
        if is_file:  # its repository is gone, and the one around it, if any, is another
            return None
    return None


def _commit(repository: _Repository) -> str | None:
    """Empty on a branch without a commit, None if it cannot be told."""
    name = "HEAD"
    for _ in range(6):  # git follows no more symbolic refs either
        text = _ref(repository, name)
        if text is None:
            return ""
        if _HASH.fullmatch(text):
            return text
        name = text.removeprefix("ref:").strip()
        if not name.startswith("refs/") or name.endswith("/.invalid"):  # damaged, or kept in a reftable
            return None
    return None


def _ref(repository: _Repository, name: str) -> str | None:
    for folder in (repository.own, repository.common):
        try:
            return _text(folder / name)
        except (FileNotFoundError, IsADirectoryError, NotADirectoryError):
            continue
    try:
        packed = (repository.common / "packed-refs").read_bytes()
    except FileNotFoundError:
        return None
    end = packed.find(b" %b\n" % os.fsencode(name))
    return packed[packed.rfind(b"\n", 0, end) + 1 : end].decode() if end > 0 else None


def _text(file: Path) -> str:
    return os.fsdecode(file.read_bytes()).strip()


def _is_dirty(repository: _Repository, commit: str) -> bool | None:
    index = _read_index(repository.own / "index", len(commit) // 2 or 20)
    if not commit:
        return bool(index.entries)
    staged = _is_staged(repository, bytes.fromhex(commit), index)
    changed = staged or _is_changed(repository, index)
    return True if changed else None if None in (staged, changed) else False


def _read_index(file: Path, width: int) -> _Index:
    """ValueError if it is damaged or of a kind that needs other files. `width`: bytes of a hash."""
    try:
        with file.open("rb") as stream:
            written = os.fstat(stream.fileno()).st_mtime_ns
            data = stream.read(_LARGEST_INDEX + 1)
    except FileNotFoundError:  # as after `git clone --no-checkout`
        return _Index([], None, 0)
    body, seal = data[:-width], data[-width:]
    # Where index.skipHash is set, git writes zeros.
    if len(data) > _LARGEST_INDEX or body[:4] != b"DIRC" or (any(seal) and seal != _digest(width, body)):
        raise ValueError("an index too large, or damaged")
    entries, at = _read_entries(body, width)
    tree = None
    while at < len(body):
        kind, size = body[at : at + 4], int.from_bytes(body[at + 4 : at + 8])
        if not kind[:1].isupper():  # must be understood: a split or sparse index, or one from the future
            raise ValueError("an index that does not hold all there is to know")
        if kind == b"TREE":
            # The root comes first: an empty name, how many entries (-1: changed since), how many folders, its hash.
            counts, _, rest = body[at + 8 : at + 8 + size].partition(b"\n")
            tree = None if counts.startswith(b"\0-") else rest[:width] or None
        at += 8 + size
    return _Index(entries, tree, written)


def _read_entries(data: bytes, width: int) -> tuple[list[_Entry], int]:
    """The entries, and where they end."""
    import struct

    version, count = struct.unpack_from(">II", data, 4)
    if version not in (2, 3, 4):
        raise ValueError(f"index version {version}")
    fixed = struct.Struct(f">8xII8xI8xI{width}sH")
    entries, name, at = [], b"", 12
    for _ in range(count):
        seconds, nanoseconds, mode, size, blob, flags = fixed.unpack_from(data, at)
        start = at + fixed.size
        if flags & _EXTENDED:
            flags |= int.from_bytes(data[start : start + 2]) << 16
            start += 2
        if version == 4:  # how much of the last name to drop, then what takes its place
            drop, start = _read_number(data, start)
            end = data.index(b"\0", start)
            name = name[: len(name) - drop] + data[start:end]
            at = end + 1
        else:
            length = flags & _LENGTH
            end = start + length if length < _LENGTH else data.index(b"\0", start)
            name = data[start:end]
            at += (end - at + 8) & ~7
        entries.append(_Entry(seconds * 10**9 + nanoseconds, mode, size, blob, flags, name))
    return entries, at


def _read_number(data: bytes, at: int) -> tuple[int, int]:
    """A number of seven bits a byte, and where it ends."""
    value = data[at] & 127
    while data[at] & 128 and value >> 64 == 0:
        at += 1
        value = (value + 1 << 7) + (data[at] & 127)
    return value, at + 1


def _is_staged(repository: _Repository, commit: bytes, index: _Index) -> bool | None:
    """Whether the index differs from the commit."""
    tree = _tree_of_commit(repository.common / "objects", commit)
    if tree is None:  # git keeps the name of the index's tree until something is staged: a hint, if no proof
        return None if index.tree is None else False
    return tree != (index.tree or _tree_of_entries(index.entries, 0, b"", len(commit))[0])


def _tree_of_commit(objects: Path, commit: bytes) -> bytes | None:
    """The name of the commit's tree; None if the commit is not there."""
    import zlib

    name = commit.hex()
    try:
        with (objects / name[:2] / name[2:]).open("rb") as stream:
            text = zlib.decompressobj().decompress(stream.read(4096), 200)
    except FileNotFoundError:
        packed = (_read_packed(idx, commit) for idx in (objects / "pack").glob("*.idx"))
        text = next(filter(None, packed), b"")
    # The tree is the first thing that a commit says.
    said = re.match(rb"(?:commit \d+\0)?tree ([0-9a-f]+)\n", text)
    return bytes.fromhex(said[1].decode()) if said else None


def _read_packed(idx: Path, name: bytes) -> bytes:
    """The commit of that name in a pack; empty if it is not there."""
    import struct

    width = len(name)
    with idx.open("rb") as stream:
        head = stream.read(8 + 1024)
        if head[:8] != b"\xfftOc\0\0\0\2":
            return b""
        # How many names begin with a byte of at most 0, 1, … 255; then all names, checksums, and places.
        below = (0, *struct.unpack_from(">256I", head, 8))
        first, last, count = below[name[0]], below[name[0] + 1], below[256]
        stream.seek(len(head) + first * width)
        nth, off = divmod(stream.read(max(0, last - first) * width).find(name), width)
        if off:  # not found: -1 leaves a rest as well
            return b""
        places = len(head) + count * (width + 4)
        stream.seek(places + (first + nth) * 4)
        place = int.from_bytes(stream.read(4))
        if place >> 31:  # beyond 2 GB
            stream.seek(places + count * 4 + (place & 0x7FFF_FFFF) * 8)
            place = int.from_bytes(stream.read(8))
    with idx.with_suffix(".pack").open("rb") as stream:
        return _read_at(stream, place)


def _read_at(pack: BinaryIO, place: int) -> bytes:
    """The commit at that place of a pack; empty if it is something else."""
    import zlib

    pack.seek(place)
    data = pack.read(_LONGEST_COMMIT)
    kind, back = data[0] >> 4 & 7, 0
    start = next((i for i, byte in enumerate(data, 1) if byte < 128), len(data))
    if kind == _DELTA:
        back, start = _read_number(data, start)
    elif kind != _COMMIT:
        return b""
    text = zlib.decompressobj().decompress(data[start:], _LONGEST_COMMIT)
    return _apply(text, _read_at(pack, place - back)) if back else text


def _apply(delta: bytes, base: bytes) -> bytes:
    """What a delta makes of another commit."""
    text, at = b"", 0
    for _ in range(2):  # the sizes of base and text
        while delta[at] > 127:
            at += 1
        at += 1
    while at < len(delta) and len(text) < _LONGEST_COMMIT:
        order, at = delta[at], at + 1
        if order < 128:  # so many new bytes
            text, at = text + delta[at : at + order], at + order
            continue
        number = 0  # bytes of the base: four bytes of their place and three of their size, zeros left out
        for i in range(7):
            if order >> i & 1:
                number, at = number | delta[at] << 8 * i, at + 1
        start, size = number & 0xFFFF_FFFF, number >> 32 or 0x10000
        text += base[start : start + size]
    return text


def _tree_of_entries(entries: list[_Entry], at: int, folder: bytes, width: int) -> tuple[bytes, int]:
    """The name of the tree that a commit of these would hold, from `at` to where the folder (b"" or b"a/b/") ends."""
    lines = bytearray()
    while at < len(entries) and entries[at].name.startswith(folder):
        entry = entries[at]
        slash = entry.name.find(b"/", len(folder))
        if slash < 0:
            lines += b"%o %b\0%b" % (entry.mode, entry.name[len(folder) :], entry.blob)
            at += 1
        else:
            inner, at = _tree_of_entries(entries, at, entry.name[: slash + 1], width)
            lines += b"40000 %b\0%b" % (entry.name[len(folder) : slash], inner)
    return _name(b"tree", lines, width), at


def _is_changed(repository: _Repository, index: _Index) -> bool | None:
    """Whether a file differs from the index."""
    top = os.fsencode(repository.top) + b"/"
    doubtful, content = [], 0
    for entry in index.entries:
        if entry.flags & (_STAGE | _INTENT_TO_ADD):  # a conflict, or a file that is only announced
            return True
        if entry.mode == _SUBMODULE or entry.flags & (_ASSUME_VALID | _SKIP_WORKTREE):
            continue
        try:
            info = os.lstat(top + entry.name)
        except (FileNotFoundError, NotADirectoryError):
            return True
        # No size is kept where git has not yet seen, or has come to doubt, the file.
        other_size = entry.size and entry.size != info.st_size & 0xFFFF_FFFF
        if other_size or stat.S_IFMT(info.st_mode) != stat.S_IFMT(entry.mode):
            return True
        # A file may change again in the tick of the clock in which the index was written.
        if not entry.size or entry.mtime != info.st_mtime_ns or entry.mtime >= index.written:
            doubtful.append((entry, info.st_size))
            content += info.st_size
    if content > _MOST_CONTENT:
        return None
    if all(_holds(top, entry, size) for entry, size in doubtful):
        return False
    return None if _has_filters(repository, index) else True


def _holds(top: bytes, entry: _Entry, size: int) -> bool:
    """Whether the file has the content that the index says, or had it before its line ends were converted."""
    path, width = top + entry.name, len(entry.blob)
    if not stat.S_ISREG(entry.mode):
        return _name(b"blob", os.readlink(path), width) == entry.blob  # noqa: PTH115
    content = Path(os.fsdecode(path)).read_bytes() if size else b""
    if _name(b"blob", content, width) == entry.blob:
        return True
    return b"\r\n" in content and _name(b"blob", content.replace(b"\r\n", b"\n"), width) == entry.blob


def _has_filters(repository: _Repository, index: _Index) -> bool:
    """Whether git may store other content than lies in the folder: git-lfs, filters of notebooks."""
    names = (os.fsdecode(e.name) for e in index.entries if e.name.rpartition(b"/")[2] == b".gitattributes")
    for file in (repository.common / "info" / "attributes", *(repository.top / name for name in names)):
        if file.is_file() and re.search(rb"\b(filter|ident|working-tree-encoding)\b", file.read_bytes()):
            return True
    return False


def _name(kind: bytes, content: bytes | bytearray, width: int) -> bytes:
    """The hash by which git knows an object."""
    return _digest(width, b"%b %d\0" % (kind, len(content)), content)


def _digest(width: int, *parts: bytes | bytearray) -> bytes:
    import hashlib

    digest = hashlib.new("sha1" if width == 20 else "sha256", usedforsecurity=False)
    for part in parts:
        digest.update(part)
    return digest.digest()
