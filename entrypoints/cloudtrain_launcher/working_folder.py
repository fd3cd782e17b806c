"""Files in a working folder at the end: kept with the output on request, else a warning.

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
"""Maximum number of files and folders in a warning."""

_PLAIN_IN_YAML = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-./")


class _File(NamedTuple):
    """A file or symbolic link below the working folder."""

    path: str
    """Relative, with `/` between its parts."""
    size: int
    """Bytes."""
    changed_ns: int
    """Last change of its content, name or mode, in nanoseconds since 1970."""
    is_link: bool


@dataclass
class Kept:
    """Result of keeping files."""

    files: int = 0
    bytes: int = 0
    left_out: list[str] = field(default_factory=list)
    """Matching files that were not kept, each with the reason."""
    errors: list[str] = field(default_factory=list)
    """Files that could not be kept, each with the reason."""
    unmatched: list[str] = field(default_factory=list)
    """Patterns without a matching file."""


class WorkingFolder:
    """A node's working folder, with its copy of the source.

    `patterns`: those in `keep`. `uploaded`: names of subfolders that the platform itself keeps.
    `started_ns`: the launcher's start, in nanoseconds since 1970; later changes are the program's.
    """

    def __init__(
        self, folder: Path, patterns: Sequence[str], uploaded: Iterable[str], started_ns: int
    ) -> None:
        self._folder = folder
        self._started_ns = started_ns
        self._patterns = [KeepPattern(text) for text in patterns]
        self._uploaded = frozenset(uploaded)

    def keep(self, target: Path) -> Kept:
        """Make matching files appear below `target`, under the same relative paths.

        Files become hard links, or are moved if necessary. A link is kept if its target is.
        """
        result = Kept()
        matches = [file for file in self._files() if self._is_meant(file.path)]
        result.unmatched = [
            pattern.text
            for pattern in self._patterns
            if not any(pattern.covers(file.path) for file in matches)
        ]
        to_keep = [file for file in matches if file.path.split("/")[0] not in self._uploaded]
        for file in sorted(to_keep, key=lambda item: item.is_link):
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
        """Describe new files without a pattern and how to keep them; empty without any."""
        new_files = self._new_files()
        if not new_files:
            return ""
        groups = sorted(
            _by_folder(new_files).items(), key=lambda group: -sum(file.size for file in group[1])
        )
        shown = [_describe(name, files) for name, files in groups[:MAX_SHOWN]]
        if more_files := [file for _, files in groups[MAX_SHOWN:] for file in files]:
            shown.append(
                f"{_count(more_files)} more ({format_size(sum(file.size for file in more_files))})"
            )
        names = f"{', '.join(shown[:-1])} and {shown[-1]}" if len(shown) > 1 else shown[0]
        patterns = [pattern.text for pattern in self._patterns] + [
            name for name, _ in groups[:MAX_SHOWN]
        ]
        keep = f"keep: [{', '.join(map(_yaml, patterns))}]"
        pronoun = "it" if len(new_files) == 1 else "them"
        return (
            f"{program} left {names} in its working folder, which is not kept: {keep} in job.yaml"
            f" keeps {pronoun}"
        )

    def _new_files(self) -> dict[_File, str]:
        """Return new files -> the path to keep: the whole folder if all of it is new."""
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
        """Yield all files and links except the launcher's; skip files that vanish meanwhile."""
        todo = [""]
        while todo:
            prefix = todo.pop()
            try:
                entries = sorted(os.scandir(self._folder / prefix), key=lambda entry: entry.name)
            except OSError:  # removed, or unreadable and so impossible to keep
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
        """Create the same link at `path`; return the reason of a failure, or ''."""
        top = self._folder.resolve()
        link = Path(file.path)
        target = (self._folder / link).readlink()
        # Make an absolute target below the working folder relative.
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
    """Return whether a file or folder of this name can be dropped."""
    return name.startswith(".") or name == "__pycache__"


_TAKEN = "the program itself has written another file of that name into the output folder"


def _share(path: Path, target: Path) -> str:
    """Make a file appear at `target`, by a hard link or by moving it; return an error, or ''."""
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
        path.unlink()  # to use the space only once
    return ""


def _folders(path: str) -> list[str]:
    """Return the folders of a path, outermost first."""
    parts = path.split("/")[:-1]
    return ["/".join(parts[: depth + 1]) for depth in range(len(parts))]


def _by_folder(files: dict[_File, str]) -> dict[str, list[_File]]:
    groups: dict[str, list[_File]] = {}
    for file, name in files.items():
        groups.setdefault(name, []).append(file)
    return groups


def _describe(name: str, files: Sequence[_File]) -> str:
    """Return a text such as `snapshot.pt (12 MB)` or `out-shakespeare/ (3 files, 12 MB)`."""
    size = format_size(sum(file.size for file in files))
    return f"{files[0].path} ({size})" if len(files) == 1 else f"{name} ({_count(files)}, {size})"


def _count(files: Sequence[_File]) -> str:
    return f"{len(files)} file{'' if len(files) == 1 else 's'}"


def _yaml(pattern: str) -> str:
    """Return a pattern as an item of a YAML list."""
    is_plain = set(pattern) <= _PLAIN_IN_YAML and pattern[0].isalpha()
    return pattern if is_plain else "'" + pattern.replace("'", "''") + "'"


def format_size(size: float) -> str:
    """Return `0 B`, `34 kB` or `1.2 GB`, like the client."""
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "B" or size >= 10 else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} TB"
