"""What a program leaves in its working folder: kept with the output if the job asks for it, else
told.

Standard library only.
"""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from cloudtrain_launcher.contract import PAYLOAD_DIR
from cloudtrain_launcher.keep_patterns import KeepPattern
from cloudtrain_launcher.storage_sync import UNFINISHED_SUFFIXES

MAX_SHOWN = 3
"""Of the files and folders that are not kept, in a warning."""

_PLAIN_IN_YAML = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-./")


class _File(NamedTuple):
    """A file or symbolic link below the working folder."""

    path: str
    """Relative, with `/` between its parts."""
    size: int
    """Bytes."""
    changed_ns: int
    """When its content, name or mode last changed, in nanoseconds since 1970."""
    is_link: bool


@dataclass
class Kept:
    """What came of keeping files."""

    files: int = 0
    bytes: int = 0
    left_out: list[str] = field(default_factory=list)
    """What was not kept although a pattern means it, each with the reason."""
    errors: list[str] = field(default_factory=list)
    """Files that could not be kept, each with the reason."""
    unmatched: list[str] = field(default_factory=list)
    """Patterns that no file matched."""


class WorkingFolder:
    """A node's working folder, which holds its copy of the source.

    `patterns`: those of `keep`. `uploaded`: names of subfolders that the platform keeps by itself.
    `started_ns`: when the launcher started, in nanoseconds since 1970: what changed later is the
    program's.
    """

    def __init__(
        self, folder: Path, patterns: Sequence[str], uploaded: Iterable[str], started_ns: int
    ) -> None:
        self._folder = folder
        self._started_ns = started_ns
        self._patterns = [KeepPattern(text) for text in patterns]
        self._uploaded = frozenset(uploaded)

    def keep(self, target: Path) -> Kept:
        """Make the files that the patterns mean appear below `target`, under the same relative
        paths.

        Files become hard links, or are moved where that is impossible. A link is kept if what it
        points to is.
        """
        result = Kept()
        found = [file for file in self._files() if self._is_meant(file.path)]
        result.unmatched = [
            each.text
            for each in self._patterns
            if not any(each.covers(file.path) for file in found)
        ]
        own = [file for file in found if file.path.split("/")[0] not in self._uploaded]
        for file in sorted(own, key=lambda each: each.is_link):
            path = target / file.path
            try:
                reason = (
                    self._link_problem(file, path)
                    if file.is_link
                    else _share(self._folder / file.path, path)
                )
            except OSError as error:
                result.errors.append(f"{file.path}: {error.strerror or error}")
                continue
            if reason:
                result.left_out.append(f"{file.path}: {reason}")
            else:
                result.files = result.files + 1
                result.bytes = result.bytes + file.size
        return result

    def warning(self, program: str) -> str:
        """What `program` has left that no pattern means, and how to keep it; empty if there is
        nothing.
        """
        left = self._left()
        if not left:
            return ""
        groups = sorted(
            _by_folder(left).items(), key=lambda group: -sum(file.size for file in group[1])
        )
        shown = [_describe(name, files) for name, files in groups[:MAX_SHOWN]]
        if rest := [file for _, files in groups[MAX_SHOWN:] for file in files]:
            shown.append(f"{_count(rest)} more ({format_size(sum(file.size for file in rest))})")
        what = f"{', '.join(shown[:-1])} and {shown[-1]}" if len(shown) > 1 else shown[0]
        patterns = [each.text for each in self._patterns] + [name for name, _ in groups[:MAX_SHOWN]]
        keep = f"keep: [{', '.join(map(_yaml, patterns))}]"
        pronoun = "it" if len(left) == 1 else "them"
        return (
            f"{program} left {what} in its working folder, which is not kept: {keep} in job.yaml"
            f" keeps {pronoun}"
        )

    def _left(self) -> dict[_File, str]:
        """New files that nobody keeps, each with the path that would keep it: its folder if all in
        it is new.
        """
        files = list(self._files())
        is_left = {file: self._is_left(file) for file in files}
        mixed = {folder for file in files if not is_left[file] for folder in _folders(file.path)}
        return {
            file: next(
                (f"{folder}/" for folder in _folders(file.path) if folder not in mixed), file.path
            )
            for file in files
            if is_left[file]
        }

    def _is_left(self, file: _File) -> bool:
        parts = file.path.split("/")
        is_cache = any(map(_is_cache, parts))
        is_kept = self._is_meant(file.path) or parts[0] in self._uploaded
        return file.changed_ns > self._started_ns and not (file.is_link or is_cache or is_kept)

    def _is_meant(self, path: str) -> bool:
        return any(pattern.covers(path) for pattern in self._patterns)

    def _files(self) -> Iterator[_File]:
        """All files and links but those of the launcher; what vanishes meanwhile is passed over."""
        todo = [""]
        while todo:
            prefix = todo.pop()
            try:
                entries = sorted(os.scandir(self._folder / prefix), key=lambda entry: entry.name)
            except OSError:  # removed, or not readable: then its files could not be kept either
                continue
            for entry in entries:
                path = prefix + entry.name
                if entry.is_dir(follow_symlinks=False):
                    is_ours = path == PAYLOAD_DIR.name or (
                        not self._patterns and _is_cache(entry.name)
                    )
                    todo += [] if is_ours else [f"{path}/"]
                    continue
                try:
                    info = entry.stat(follow_symlinks=False)
                except FileNotFoundError:
                    continue
                if stat.S_ISREG(info.st_mode) or stat.S_ISLNK(info.st_mode):
                    yield _File(path, info.st_size, info.st_ctime_ns, stat.S_ISLNK(info.st_mode))

    def _link_problem(self, file: _File, path: Path) -> str:
        """Make the same link at `path`; returns why that was not done, or ''."""
        top = self._folder.resolve()
        link = Path(file.path)
        target = (self._folder / link).readlink()
        # An absolute target below the working folder becomes a relative one.
        inside = os.path.relpath(top / link.parent / target, top)
        if inside == ".." or inside.startswith("../"):
            return f"a link that leads out of the working folder ({target})"
        if not (self._folder / inside).exists():
            return f"a link to nothing ({target})"
        if not (self._is_meant(inside) or self._is_meant(f"{inside}/any")):
            return f"a link to {inside}, which is not kept"
        if os.path.lexists(path):
            return "" if path.is_symlink() else _TAKEN
        path.parent.mkdir(parents=True, exist_ok=True)
        path.symlink_to(os.path.relpath(inside, link.parent))
        return ""


def _is_cache(name: str) -> bool:
    """Whether nobody misses a file or folder of this name."""
    return name.startswith(".") or name == "__pycache__"


_TAKEN = "the program itself has written another file of that name into the output folder"


def _share(path: Path, target: Path) -> str:
    """Make a file appear at `target`, by a hard link or by moving it; returns why that was not
    done, or ''.
    """
    if os.path.lexists(target):
        return "" if target.exists() and target.samefile(path) else _TAKEN
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.link(path, target)
    except FileExistsError:
        return _TAKEN
    except OSError:  # another disk or mount, or one without hard links
        draft = target.with_name(f".{target.name[:200]}{UNFINISHED_SUFFIXES[0]}")
        try:
            shutil.copy2(path, draft)
            draft.replace(target)
        finally:
            draft.unlink(missing_ok=True)
        path.unlink()  # so that nothing takes twice its room
    return ""


def _folders(path: str) -> list[str]:
    """The folders that a path is in, the outermost first."""
    parts = path.split("/")[:-1]
    return ["/".join(parts[: depth + 1]) for depth in range(len(parts))]


def _by_folder(left: dict[_File, str]) -> dict[str, list[_File]]:
    groups: dict[str, list[_File]] = {}
    for file, name in left.items():
        groups.setdefault(name, []).append(file)
    return groups


def _describe(name: str, files: Sequence[_File]) -> str:
    """`snapshot.pt (12 MB)`, `out-shakespeare/ (3 files, 12 MB)`."""
    size = format_size(sum(file.size for file in files))
    return f"{files[0].path} ({size})" if len(files) == 1 else f"{name} ({_count(files)}, {size})"


def _count(files: Sequence[_File]) -> str:
    return f"{len(files)} file{'' if len(files) == 1 else 's'}"


def _yaml(pattern: str) -> str:
    """A pattern as an item of a YAML list."""
    is_plain = set(pattern) <= _PLAIN_IN_YAML and pattern[0].isalpha()
    return pattern if is_plain else "'" + pattern.replace("'", "''") + "'"


def format_size(size: float) -> str:
    """`0 B`, `34 kB`, `1.2 GB`, as the client writes them."""
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "B" or size >= 10 else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} TB"
