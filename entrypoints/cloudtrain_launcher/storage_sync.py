"""Copies of a node's files to the job's storage during the job. Standard library only.

Used on platforms that mount storage. Mounts differ in their handling of renames, unfinished files
and concurrent nodes; so programs write to the node's own disk, and only finished files are copied
to the mount.
"""

from __future__ import annotations

import json
import os
import shutil
import stat
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

POLL_SECONDS = 1.0
UPLOAD_NANOSECONDS = 10 * 10**9
"""Maximum time until storage, after a file is closed, dates its copy; a later change is a peer's."""

UNFINISHED_SUFFIXES = (".partial", ".restoring")
"""Suffixes of unfinished files and folders."""

SYNCED_TYPES = (stat.S_IFREG, stat.S_IFLNK)
"""Regular files and symbolic links."""

LINK_SUFFIX = ".cloudtrain-link"
"""Suffix of a file in storage with the target of a symbolic link: a datastore lacks links."""

JOURNAL_NAME = "levelled"
"""Journal in the launcher's scratch folder of changes made for peers in the checkpoint folder.

The agent appends a JSON line `[path, [size, modified, link]]` for a file that it fetches, `[path,
null]` for a file that it deletes.
"""


class FileState(NamedTuple):
    """State of a file, to detect changes."""

    size: int
    """Bytes."""
    modified: int
    """Nanoseconds since 1970."""


IN_STORAGE = FileState(-1, -1)
"""State of a link to the file's own place in storage: see `restore`."""


class _LocalFile(NamedTuple):
    """A finished file in a synchronised folder."""

    path: Path
    folder: Path
    """The local folder."""
    copy: Path
    """Its folder in storage."""
    state: FileState


class StorageSync:
    """Thread that copies a node's folders to storage.

    `synced_dirs`: local folder -> folder in storage. A file is copied once two polls find it
    unchanged, in the order of writing. A file deleted locally, also for a peer, is deleted in
    storage if this node copied it. A symbolic link becomes a small file with its target.

    `linked_dirs`: local folder -> local folder that another program uploads. A file becomes a hard
    link there at once. `journal`: the file named `JOURNAL_NAME`.
    """

    def __init__(
        self,
        synced_dirs: Mapping[str, str],
        log: Callable[[str], None],
        linked_dirs: Mapping[str, str] | None = None,
        journal: Path | None = None,
    ) -> None:
        linked_dirs = linked_dirs or {}
        self._linked = {Path(local) for local in linked_dirs}
        self._pairs: list[tuple[Path, Path]] = []
        for local, storage in {**synced_dirs, **linked_dirs}.items():
            self._pairs.append((Path(local), Path(storage)))

        self._log = log
        self._journal = journal
        self._journal_bytes_read = 0
        self._synced: dict[Path, FileState] = {}
        """State in storage of this node's own files."""
        self._copies: dict[Path, FileState] = {}
        """File that this node has stored -> size of its copy in storage, and latest change."""
        self._last_poll: dict[Path, FileState] = {}
        self._deleted: set[Path] = set()
        """Files that the last poll found deleted."""
        self._wakeup = threading.Event()
        self._sync_now = False
        self._finished = False
        self._thread: threading.Thread | None = None

    def mark_synced(self) -> None:
        """Treat all existing files as copied."""
        self._synced = {file.path: file.state for file in self._files()}
        self._last_poll = dict(self._synced)

    def start(self) -> None:
        """Start the thread, which polls every `POLL_SECONDS`.

        Programs may expect a folder that the platform has made: make it beside them too.
        """
        for local, uploaded in self._pairs:
            if local in self._linked and uploaded.is_dir():
                with suppress(FileExistsError):
                    local.mkdir()

        if self._pairs:
            self._thread = threading.Thread(target=self._work, name="storage sync", daemon=True)
            self._thread.start()

    def finish(self) -> str:
        """Stop the thread and copy all remaining files; return the first error, or ''."""
        self._finished = True
        self._wakeup.set()
        if self._thread is not None:
            self._thread.join()

        return self.poll(everything=True)

    def sync_soon(self) -> None:
        """Copy all files at once, without waiting for the next poll, after a checkpoint."""
        self._sync_now = True
        self._wakeup.set()

    def _work(self) -> None:
        last_error = ""
        while not self._finished:
            self._wakeup.wait(POLL_SECONDS)
            self._wakeup.clear()
            everything = self._sync_now
            self._sync_now = False
            error = self.poll(everything=everything)
            if error != last_error:
                last_error = error
                self._log(f"not saved to storage yet: {error}" if error else "saved to storage")

    def poll(self, *, everything: bool) -> str:
        """Poll once; return the first error, or ''. `everything`: include unfinished files."""
        self._read_journal()
        error = self._copy_moved_links()
        if error:  # no change in storage before that
            return error

        files = sorted(self._files(), key=lambda file: file.state.modified)

        for file in files:
            if file.state == IN_STORAGE:
                self._synced[file.path] = file.state

            is_settled = (
                everything
                or file.folder in self._linked
                or self._last_poll.get(file.path) == file.state
            )
            if self._synced.get(file.path) != file.state and is_settled:
                try:
                    self._store(file)
                    self._synced[file.path] = file.state
                except FileNotFoundError:
                    continue  # deleted meanwhile
                except OSError as failed:
                    error = f"{file.path.name}: {failed.strerror or failed}"

        self._read_journal()
        self._delete_in_storage(
            {file.path: file.state for file in files}, everything=everything, failed=bool(error)
        )

        return error

    def _store(self, file: _LocalFile) -> None:
        if file.folder in self._linked:
            _hard_link(file.path, file.copy)
        else:
            _store(file.path, file.folder, file.copy)
            latest = time.time_ns() + UPLOAD_NANOSECONDS
            self._copies[file.path] = FileState(file.state.size, latest)

    def _delete_in_storage(
        self, files: dict[Path, FileState], *, everything: bool, failed: bool
    ) -> None:
        """Repeat local deletions in storage one poll later, after copying any replacement."""
        before = self._last_poll
        self._last_poll = files
        deleted = (self._deleted | before.keys()) - files.keys()
        if failed:
            due = set()
        elif everything:
            due = deleted
        else:
            due = deleted & self._deleted

        for path in due & self._synced.keys():
            del self._synced[path]
            self._copies.pop(path, None)
            for local, storage in self._pairs:
                if local in path.parents:
                    _delete(storage, path.relative_to(local))

        self._deleted = deleted - due

    def _copy_moved_links(self) -> str:
        """Replace moved links into storage by copies; return the first error, or ''."""
        for local, storage in self._pairs:
            for path in finished_files(local):
                draft = path.with_name(f".{path.name[:200]}{UNFINISHED_SUFFIXES[1]}")
                copy = storage / path.relative_to(local)

                try:
                    if self._is_storage_link(path) and path.readlink() != copy:
                        shutil.copyfile(path, draft)
                        draft.replace(path)
                except FileNotFoundError:
                    continue  # deleted meanwhile
                except OSError as error:
                    return f"{path.name}: {error.strerror or error}"

        return ""

    def _is_storage_link(self, path: Path) -> bool:
        """Return whether a path is a link into storage: see `restore`."""
        if not path.is_symlink():
            return False

        parents = path.readlink().parents
        return any(storage in parents for _, storage in self._pairs)

    def _read_journal(self) -> None:
        """Read the journal: each node copies its own files to storage, and deletes them there."""
        if self._journal is None or not self._journal.exists():
            return

        with self._journal.open("rb") as journal:
            journal.seek(self._journal_bytes_read)
            content = journal.read()

        lines = content[: content.rfind(b"\n") + 1]
        self._journal_bytes_read += len(lines)

        for name, entry in map(json.loads, lines.splitlines()):
            path = Path(name)
            if entry is not None:
                self._synced[path] = FileState(entry[0], entry[1])
                self._copies.pop(path, None)
            elif not self._is_own(path):
                self._synced.pop(path, None)

    def _is_own(self, path: Path) -> bool:
        """Return whether the copy in storage is still the one that this node has stored."""
        stored = self._copies.get(path)
        for local, storage in self._pairs:
            with suppress(OSError):
                if stored and local in path.parents:
                    info = (storage / path.relative_to(local)).stat()
                    return info.st_size == stored.size and info.st_mtime_ns <= stored.modified

        return False

    def _files(self) -> Iterator[_LocalFile]:
        """Return all finished files and links of the synchronised folders."""
        for local, storage in self._pairs:
            for path in finished_files(local):
                copy = storage / path.relative_to(local)
                with suppress(OSError):
                    info = path.lstat()
                    state = FileState(info.st_size, info.st_mtime_ns)
                    if stat.S_ISLNK(info.st_mode) and path.readlink() == copy:
                        yield _LocalFile(path, local, copy, IN_STORAGE)
                    elif stat.S_IFMT(info.st_mode) in SYNCED_TYPES:
                        yield _LocalFile(path, local, copy, state)


def finished_files(folder: Path) -> Iterator[Path]:
    """Yield the files and links below a folder, without `UNFINISHED_SUFFIXES`."""
    for top, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if not name.endswith(UNFINISHED_SUFFIXES)]
        links = [name for name in folders if Path(top, name).is_symlink()]
        for name in names + links:
            if not name.endswith(UNFINISHED_SUFFIXES):
                yield Path(top, name)


def _store(path: Path, folder: Path, copy: Path) -> None:
    """Copy a file of the local `folder` to storage, or write a file that describes a link."""
    copy.parent.mkdir(parents=True, exist_ok=True)
    obsolete = _link_file(copy)

    if path.is_symlink():
        obsolete.write_bytes(os.fsencode(_link_target(path, folder)))
        obsolete = copy
    else:
        _copy(path, copy)

    with suppress(OSError):  # an earlier link that is now a file, or the reverse
        obsolete.unlink()


def _copy(path: Path, copy: Path) -> None:
    """Write the file in place: closing it stores it as a whole."""
    with path.open("rb") as source, copy.open("wb") as target:
        shutil.copyfileobj(source, target, 1 << 22)


def _delete(storage: Path, relative: Path) -> None:
    """Delete a file below a folder in storage, and folders left empty."""
    copy = storage / relative
    for path in (copy, _link_file(copy)):
        with suppress(OSError):
            path.unlink()

    with suppress(OSError):  # not empty
        for folder in relative.parents[:-1]:
            (storage / folder).rmdir()


def _link_file(copy: Path) -> Path:
    return copy.with_name(copy.name + LINK_SUFFIX)


def _link_target(path: Path, folder: Path) -> str:
    """Return a link's target, as a relative path if it is inside the local folder."""
    target = Path(os.path.normpath(path.readlink()))
    if folder in (target, *target.parents):
        return os.path.relpath(target, path.parent)

    return str(path.readlink())


def _hard_link(path: Path, target: Path) -> None:
    """Make a file available under another path: by a hard link, or a copy if necessary."""
    if path.is_symlink() and not path.is_file():
        return

    target.parent.mkdir(parents=True, exist_ok=True)
    with suppress(FileNotFoundError):
        if target.samefile(path):
            return

    target.unlink(missing_ok=True)

    try:
        os.link(path.resolve(), target)
    except FileNotFoundError:
        raise
    except OSError:  # another disk, or a disk without hard links
        shutil.copyfile(path, target)
