"""Files in a working folder at the end: kept with output or model on request, else a warning.

Standard library only.
"""

from __future__ import annotations

import json
import os
import shutil
import stat
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from cloudtrain_launcher.contract import PAYLOAD_DIR, KeepPattern
from cloudtrain_launcher.storage_sync import UNFINISHED_SUFFIXES
from cloudtrain_wire.sizes import format_size

MAX_SHOWN = 3
"""Maximum number of files and folders in a warning."""

_TAKEN = "the program itself has written another file of that name there"


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

    def keep(self, target: Path, *, with_model: bool = False) -> Kept:
        """Make matching files appear below `target`, under the same relative paths.

        Files become hard links, or are moved if necessary. A symbolic link becomes its file.
        `with_model`: those of the patterns for the model, also from folders that the platform keeps.
        """
        result = Kept()
        patterns = [item for item in self._patterns if item.is_for_model == with_model]
        if not patterns:
            return result

        files = list(self._files())
        meant: dict[str, _File] = {}
        for pattern in patterns:
            matches = [file for file in files if pattern.covers(file.path)]
            if not matches:
                result.unmatched.append(pattern.text)

            for file in matches:
                if with_model or file.path.split("/")[0] not in self._uploaded:
                    meant[file.path] = file

        # A link needs its file, which may be moved.
        for file in sorted(meant.values(), key=lambda item: not item.is_link):
            try:
                reason = self._keep_file(file, target / file.path)
            except OSError as error:
                result.errors.append(f"{file.path}: {error.strerror or error}")
                continue

            if reason:
                result.left_out.append(f"{file.path}: {reason}")
            else:
                result.files += 1
                result.bytes += file.size

        return result

    def warning(self, program: str) -> str:
        """Describe new files without a pattern and how to keep them; empty without any."""
        groups: dict[str, list[_File]] = {}

        for file in self._files():
            if self._is_left(file):
                top, slash, _ = file.path.partition("/")
                groups.setdefault(top + slash, []).append(file)

        if not groups:
            return ""

        largest = sorted(groups, key=lambda name: -_size(groups[name]))
        shown = [f"{name} ({_describe(groups[name])})" for name in largest[:MAX_SHOWN]]
        more_files: list[_File] = []
        for name in largest[MAX_SHOWN:]:
            more_files += groups[name]
        if more_files:
            shown.append(f"more ({_describe(more_files)})")

        patterns = [pattern.text for pattern in self._patterns] + largest[:MAX_SHOWN]

        return (
            f"{program} left {', '.join(shown)} in its working folder, which is not with the results:"
            f" keep: {json.dumps(patterns, ensure_ascii=False)} in job.yaml adds it"
        )

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
                    if not is_ours:
                        todo.append(f"{path}/")
                    continue

                try:
                    info = entry.stat(follow_symlinks=False)
                except FileNotFoundError:
                    continue

                if stat.S_ISREG(info.st_mode) or stat.S_ISLNK(info.st_mode):
                    yield _File(path, info.st_size, info.st_ctime_ns, stat.S_ISLNK(info.st_mode))

    def _keep_file(self, file: _File, target: Path) -> str:
        """Make a file appear at `target`; return the reason if it is left out, or ''."""
        path = self._folder / file.path
        if file.is_link:
            path = path.resolve()
            if self._folder.resolve() not in path.parents or not path.is_file():
                return "a link to a folder, to nothing, or out of the working folder"

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

            if not file.is_link:
                path.unlink()  # to use the space only once

        return ""


def _is_cache(name: str) -> bool:
    """Return whether a file or folder of this name can be dropped."""
    return name.startswith(".") or name == "__pycache__"


def _size(files: Sequence[_File]) -> int:
    return sum(file.size for file in files)


def _describe(files: Sequence[_File]) -> str:
    """Return a text such as `3 files, 12 MB`."""
    if len(files) == 1:
        count = "1 file"
    else:
        count = f"{len(files)} files"

    return f"{count}, {format_size(_size(files))}"
