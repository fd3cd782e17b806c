"""Folder of a job's results: files, folders, and links that stay inside.

Results are not trusted. An odd entry is named and left out. Files never leave the folder, and
never keep special permissions.
"""

from __future__ import annotations

import errno
import os
import posixpath
import stat
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from cloudtrain.file_names import is_storable, relative_name
from cloudtrain.source.tree import link_problem, relative_target
from cloudtrain_wire.bounded_files import NOFOLLOW, PLAIN

Note = Callable[[str], None]
"""Called with a message for the user."""

LINK = ".cloudtrain-link"
LONGEST_TARGET = 4096
"""Maximum length of a link's target; LINK ends files with the target of a link."""

_BLOCK = 1 << 20
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | PLAIN | NOFOLLOW
_KINDS = {
    stat.S_IFIFO: "a FIFO",
    stat.S_IFSOCK: "a socket",
    stat.S_IFBLK: "a device",
    stat.S_IFCHR: "a device",
}


class Results:
    """Folder that is being filled. Links come last, so that no file is written through one.

    Paths are relative, `/` between their parts, and plain. The last entry of a name wins, as in
    tar.
    """

    def __init__(self, folder: Path, roots: Sequence[str], note: Note) -> None:
        """Count existing entries of the folder as added.

        `roots`: absolute names of this folder in the job. `note` gets names of left out entries.
        """
        self._folder = folder
        self._roots = roots
        self._note = note
        self._files: set[str] = set()
        self._folders: set[str] = set()
        self._links: dict[str, str] = {}
        folder.mkdir(parents=True, exist_ok=True)

        for top, inner, names in os.walk(folder):
            below = relative_name(top, folder)
            self._files.update(posixpath.normpath(f"{below}/{name}") for name in names)
            self._folders.update(posixpath.normpath(f"{below}/{name}") for name in inner)

    def leave_out(self, path: str, why: str) -> None:
        """Report an entry that is not kept."""
        self._note(f"{self._folder.name}/{path} was left out: {why}")

    def add_folder(self, path: str) -> None:
        """Add a folder, perhaps an empty one."""
        if path and path not in self._folders and self._is_free(path, folder=True):
            self._parents(path + "/")

    def add_file(
        self,
        path: str,
        blocks: Iterable[bytes | int],
        *,
        executable: bool = False,
        modified_ns: int | None = None,
    ) -> None:
        """Add a file with these blocks; a number is the length of a hole."""
        if not self._is_free(path):
            return

        self._parents(path)
        place = self._place(path)
        with open(os.open(place, _NEW, 0o777 if executable else 0o666), "wb") as file:
            for block in blocks:
                if isinstance(block, int):
                    file.seek(block, os.SEEK_CUR)
                else:
                    file.write(block)

            file.truncate()

        if modified_ns is not None:
            with suppress(OSError, OverflowError):  # times that this disk cannot hold
                os.utime(place, ns=(modified_ns, modified_ns))

        self._files.add(path)

    def add_hard_link(self, path: str, source: str) -> None:
        """Add another name for an earlier entry."""
        if source in self._links:
            target = _absolute(source, self._links[source])
            self.add_link(path, relative_target(path, target, ("/",)))
        elif source not in self._files:
            self.leave_out(path, f"a hard link to {source}, which is not there")
        elif path != source and self._is_free(path):
            self._parents(path)
            self._share(source, path)
            self._files.add(path)

    def add_link(self, path: str, target: str) -> None:
        """Add a symbolic link; `finish` checks it."""
        if self._is_free(path):
            self._links[path] = relative_target(path, target, self._roots)

    def finish(self) -> bool:
        """Make the links that lead inside. Return whether the folder has any entry."""
        while wrong := self._wrong_links():
            for path, why in wrong.items():
                self.leave_out(path, why)
                del self._links[path]

        for path, target in self._links.items():
            self._parents(path)
            try:
                os.symlink(target, self._place(path))  # noqa: PTH211
            except OSError as error:
                if sys.platform != "win32":
                    raise

                self.leave_out(path, f"a link ({error.strerror})")

        return bool(self._files or self._links)

    def _wrong_links(self) -> dict[str, str]:
        """Return the links that lead nowhere or outside, each with the reason."""
        wrong = {}
        for path in self._links:
            why = link_problem(path, self._links, self._files, self._folders, "what the job left")
            if why is not None:
                wrong[path] = why

        return wrong

    def _is_free(self, path: str, *, folder: bool = False) -> bool:
        """Return whether an entry can have this name; an earlier one of the name is removed."""
        if not is_storable(path):
            self.leave_out(path, "Windows cannot store that name")
            return False

        parts = path.split("/")
        for depth in range(1, len(parts)):
            above = "/".join(parts[:depth])
            if above in self._files:
                self.leave_out(path, f"{above} is a file, and no folder")
                return False
            if above in self._links:
                self.leave_out(path, f"{above} is a link, and no folder")
                return False

        if path in self._folders or (folder and (path in self._files or path in self._links)):
            self.leave_out(
                path, "another entry of that name is a folder, or it is one and the other is not"
            )
            return False

        if path in self._files:
            self._files.discard(path)
            os.unlink(self._place(path))  # noqa: PTH108

        self._links.pop(path, None)
        return True

    def _parents(self, path: str) -> None:
        parent = path.rpartition("/")[0]
        if parent and parent not in self._folders:
            os.makedirs(self._place(parent), exist_ok=True)  # noqa: PTH103
            while parent and parent not in self._folders:
                self._folders.add(parent)
                parent = parent.rpartition("/")[0]

    def _place(self, path: str) -> str:
        return f"{self._folder}/{path}"

    def _share(self, existing: str, path: str) -> None:
        try:
            os.link(self._place(existing), self._place(path), follow_symlinks=False)
        except OSError:  # a disk without links
            with (
                open(self._place(existing), "rb") as source,
                open(os.open(self._place(path), _NEW, 0o666), "wb") as file,
            ):
                while block := source.read(_BLOCK):
                    file.write(block)


def copy_results(source: Path, folder: Path, roots: Sequence[str], note: Note) -> bool:
    """Copy a job's folder of this machine. Return whether it has any entry.

    Raise OSError if a file cannot be read. Files that vanish meanwhile are skipped.
    """
    results = Results(folder, (*roots, str(source), os.path.realpath(source)), note)
    todo = [""]
    while todo:
        prefix = todo.pop()
        try:
            with os.scandir(f"{source}/{prefix}") as listing:
                entries = sorted(listing, key=lambda entry: entry.name)
        except FileNotFoundError:
            continue

        for entry in entries:
            path = prefix + entry.name
            with suppress(FileNotFoundError):
                if entry.is_symlink():
                    results.add_link(path, os.readlink(entry.path))  # noqa: PTH115
                elif entry.is_dir(follow_symlinks=False):
                    results.add_folder(path)
                    todo.append(path + "/")
                elif not entry.is_file(follow_symlinks=False):
                    kind = stat.S_IFMT(entry.stat(follow_symlinks=False).st_mode)
                    results.leave_out(
                        path, f"{_KINDS.get(kind, 'an entry of an unknown kind')}, not a file"
                    )
                else:
                    _copy_file(results, path, entry.path)

    return results.finish()


def make_links(stored: Sequence[Path], folder: Path, note: Note) -> bool:
    """Replace files below `folder` that describe links by the links.

    Return whether the folder has any entry then.
    """
    links = {}
    for path in stored:
        name = path.relative_to(folder).as_posix().removesuffix(LINK)
        links[name] = os.fsdecode(path.read_bytes())
        path.unlink()
        if (folder / name).is_symlink():  # of a download that was cut short
            (folder / name).unlink()

    results = Results(folder, (), note)
    for name, target in links.items():
        results.add_link(name, target)

    return results.finish()


def _copy_file(results: Results, path: str, source: str) -> None:
    # The entry may have become a FIFO or a link since the listing: neither block nor follow.
    fd = os.open(source, os.O_RDONLY | PLAIN | NOFOLLOW)
    try:
        info = os.fstat(fd)
        if not stat.S_ISREG(info.st_mode):
            results.leave_out(path, "not a file any more")
            return

        if path.endswith(LINK) and info.st_size <= LONGEST_TARGET:  # of a rehearsal as Azure ML
            results.add_link(path.removesuffix(LINK), os.fsdecode(os.read(fd, LONGEST_TARGET)))
            return

        executable = info.st_mode & stat.S_IXUSR != 0
        results.add_file(
            path, _blocks(fd, info.st_size), executable=executable, modified_ns=info.st_mtime_ns
        )
    finally:
        os.close(fd)


def _blocks(fd: int, size: int) -> Iterator[bytes | int]:
    """Yield a file's content and the lengths of its holes, which may exceed the disk."""
    at = 0
    while at < size:
        with suppress(OSError):  # a disk without holes, or a hole up to the end
            hole = _next_data(fd, at, size) - at
            if hole > 0:
                yield hole
                at += hole
                os.lseek(fd, at, os.SEEK_SET)
                continue

        os.lseek(fd, at, os.SEEK_SET)
        block = os.read(fd, _BLOCK)
        if not block:  # it has become shorter
            return

        yield block
        at += len(block)


def _next_data(fd: int, at: int, size: int) -> int:
    if sys.platform == "win32":
        return at

    try:
        return os.lseek(fd, at, os.SEEK_DATA)
    except OSError as error:
        if error.errno == errno.ENXIO:
            return size
        raise


def _absolute(path: str, target: str) -> str:
    """Return a link's target as if the tree's top were the root."""
    if target.startswith("/"):
        return target

    return posixpath.normpath(f"/{path}/../{target}")
