"""Synchronisation of deleted checkpoints between nodes, while programs run. Standard library only.

On a shared disk rank 0 deletes an old checkpoint with all ranks' files in it. With one checkpoint
folder per node, the files of the other nodes would remain and fill disks and storage. So each node
polls its folder for deletions and sends them to its peers through torchrun's store, which the
caller passes.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from cloudtrain_launcher.storage_sync import UNFINISHED_SUFFIXES

POLL_SECONDS = 2.0

STOP_TIMEOUT_SECONDS = 5.0
"""Maximum wait of `stop` for a poll: the store's machine may not answer."""


class FileId(NamedTuple):
    """Identity of a file, independent of its name."""

    inode: int
    size: int
    """Bytes."""
    modified: int
    """Nanoseconds since 1970."""


class Snapshot(NamedTuple):
    """All finished files and folders at one time, by relative path."""

    files: Mapping[str, FileId]
    folders: Mapping[str, int]
    """Folder -> inode."""
    started: int = 0
    """Start of the scan, in nanoseconds since 1970; missing files that appear later are newer."""


class DeletionSync:
    """Thread that sends one node's deletions to its peers and repeats their deletions.

    `record` is called with a relative path and None before each repeated deletion of a file.
    """

    def __init__(self, folder: Path, record: Callable[[str, None], None]) -> None:
        self._folder = folder
        self._record = record
        self._snapshots = [Snapshot({}, {})] * 3
        """The latest three snapshots, newest last."""
        self._n_received = 0
        self._pending: list[tuple[str, float]] = []
        """Pending deletions of peers: path and Unix timestamp."""
        self._stopped = threading.Event()
        self._thread = threading.Thread()
        self.deleted: dict[str, int] = {}
        """Path deleted on this node since `start` -> detection time, in nanoseconds since 1970."""

    def start(self, store: Any, node: int) -> None:
        """Start the thread, which polls every `POLL_SECONDS`."""
        self.deleted = {}
        self._n_received = 0
        self._pending = []
        self._snapshots = [take_snapshot(self._folder)] * 3
        self._stopped = threading.Event()
        args = (store, node, self._stopped)
        self._thread = threading.Thread(target=self._work, args=args, name="deletions", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop the thread; `deleted` is complete afterwards."""
        self._stopped.set()
        if self._thread.is_alive():
            self._thread.join(STOP_TIMEOUT_SECONDS)
        self._detect(settled=False)
        self.deleted = {
            path: when
            for path, when in self.deleted.items()
            if not os.path.lexists(self._folder / path)
        }

    def _work(self, store: Any, node: int, stopped: threading.Event) -> None:
        with suppress(RuntimeError):  # the first node and its store have ended
            while not stopped.wait(POLL_SECONDS):
                self.exchange(store, node)

    def exchange(self, store: Any, node: int) -> None:
        """Send this node's deletions and repeat its peers'. Raise RuntimeError without a store."""
        deleted = self._detect(settled=True)
        if deleted:
            store.set(f"gone/{store.add('gone/count', 1)}", json.dumps([node, deleted]))
        # Do not wait for a missing key: torchrun itself would have to wait.
        while self._n_received < store.add("gone/count", 0) and store.check(
            [f"gone/{self._n_received + 1}"]
        ):
            self._n_received += 1
            peer, paths = json.loads(store.get(f"gone/{self._n_received}"))
            self._pending += [(path, when / 1e9) for path, when in paths.items() if peer != node]
        self._pending = [
            (path, when) for path, when in self._pending if not self._repeat(path, when)
        ]

    def _detect(self, *, settled: bool) -> dict[str, int]:
        """Return deleted path -> detection time.

        `settled`: only paths missing in two polls under any name, since a poll may miss a file
        during a rename; and only folders without new content, as in a folder being written.
        """
        older, last, missing = self._snapshots
        latest = take_snapshot(self._folder)
        self._snapshots = [last, missing, latest]
        deleted = {}
        for path in find_deleted(last, latest, self.deleted):
            before = _files_below(older, path)
            files = _files_below(last, path)
            was_missing = not files.keys() & missing.files.keys() and path not in missing.files
            if not settled or (was_missing and files.items() <= before.items()):
                deleted[path] = missing.started if was_missing else latest.started
        self.deleted.update(deleted)
        return deleted

    def _repeat(self, path: str, when: float) -> bool:
        """Repeat a peer's deletion at that time, unless the path is newer.

        Return False if the path has changed too recently to decide.
        """
        target = self._folder / path
        paths = (
            [target, *target.rglob("*")]
            if target.is_dir() and not target.is_symlink()
            else [target]
        )
        changed = _last_change(paths)
        if not changed or changed > when:
            return True
        if time.time() - changed < 2 * POLL_SECONDS:
            return False
        for item in reversed(paths):
            with suppress(OSError):
                if item.is_dir() and not item.is_symlink():
                    item.rmdir()
                else:
                    self._record(str(item.relative_to(self._folder)), None)
                    item.unlink()
        # Deleted by a peer.
        self._snapshots = [_excluding(snapshot, path) for snapshot in self._snapshots]
        return True


def _last_change(paths: Collection[Path]) -> float:
    """Return the latest change of any of these paths, as a Unix timestamp; 0 if none exists."""
    changed = 0.0
    for path in paths:
        with suppress(FileNotFoundError):
            info = path.lstat()
            changed = max(changed, info.st_mtime, info.st_ctime)
    return changed


def take_snapshot(folder: Path) -> Snapshot:
    """Return all finished files and folders below a folder."""
    started = time.time_ns()
    files = dict[str, FileId]()
    inodes = dict[str, int]()
    for top, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if not name.endswith(UNFINISHED_SUFFIXES)]
        for name in (*folders, *names):
            path = Path(top, name)
            with suppress(OSError):
                info = path.lstat()
                if name in folders:
                    inodes[str(path.relative_to(folder))] = info.st_ino
                elif not name.endswith(UNFINISHED_SUFFIXES):
                    files[str(path.relative_to(folder))] = FileId(
                        info.st_ino, info.st_size, info.st_mtime_ns
                    )
    return Snapshot(files, inodes, started)


def find_deleted(before: Snapshot, after: Snapshot, earlier: Collection[str] = ()) -> list[str]:
    """Return paths that no longer exist, without renamed ones; only the top path of a folder.

    `earlier`: previous deletions; a folder that lost its last file by them counts too.
    """
    renamed = {file for path, file in after.files.items() if path not in before.files}
    emptied = {str(parent) for path in earlier for parent in Path(path).parents}
    deleted: list[str] = []
    for path in sorted({*before.folders, *before.files} - {*after.folders, *after.files}):
        if any(path.startswith(f"{parent}{os.sep}") for parent in deleted):
            continue
        files = set(_files_below(before, path).values())
        if (files or path in emptied) and not renamed & files:
            deleted.append(path)
    return deleted


def _files_below(snapshot: Snapshot, path: str) -> dict[str, FileId]:
    """Return the file itself, or all files of the folder."""
    if path in snapshot.files:
        return {path: snapshot.files[path]}
    return {
        name: file for name, file in snapshot.files.items() if name.startswith(f"{path}{os.sep}")
    }


def _excluding(snapshot: Snapshot, path: str) -> Snapshot:
    """Return the snapshot without a file, or without a folder and its content."""
    below = f"{path}{os.sep}"
    files = {
        name: file
        for name, file in snapshot.files.items()
        if name != path and not name.startswith(below)
    }
    folders = {
        name: inode
        for name, inode in snapshot.folders.items()
        if name != path and not name.startswith(below)
    }
    return Snapshot(files, folders, snapshot.started)
