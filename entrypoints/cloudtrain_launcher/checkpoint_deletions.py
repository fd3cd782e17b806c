"""Deletes on all nodes what a program deletes among the checkpoints of one, while it runs. Standard
library only.

On a shared disk rank 0 deletes an old checkpoint together with the files that other ranks wrote
into it. Where each node has a checkpoint folder of its own, the files of the other nodes would
stay, and fill disks and storage. So every node polls its folder for deletions and sends them to its
peers through torchrun's store, which is passed in.
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
"""How long `stop` waits for a poll to end: the store may be on a machine that does not answer."""


class FileId(NamedTuple):
    """What identifies a file whatever its name."""

    inode: int
    size: int
    """Bytes."""
    modified: int
    """Nanoseconds since 1970."""


class Snapshot(NamedTuple):
    """All finished files and folders at one time, by their relative paths."""

    files: Mapping[str, FileId]
    folders: Mapping[str, int]
    """Folder -> inode."""
    started: int = 0
    """When it was begun, in nanoseconds since 1970: a file that it lacks and that exists later is
    newer.
    """


class DeletionSync:
    """Sends one node's deletions to its peers and repeats theirs, in a thread.

    `record` is called with a relative path and None before each file that is deleted because a peer
    has deleted it.
    """

    def __init__(self, folder: Path, record: Callable[[str, None], None]) -> None:
        self._folder = folder
        self._record = record
        self._snapshots = [Snapshot({}, {})] * 3
        """The last three, the newest last."""
        self._n_received = 0
        self._pending: list[tuple[str, float]] = []
        """Deletions of peers that are still to be repeated: path and Unix timestamp."""
        self._stopped = threading.Event()
        self._thread = threading.Thread()
        self.deleted: dict[str, int] = {}
        """Files and folders deleted on this node since `start` -> when that was noticed, in
        nanoseconds since 1970.
        """

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
        with suppress(RuntimeError):  # the first node has ended, and the store with it
            while not stopped.wait(POLL_SECONDS):
                self.exchange(store, node)

    def exchange(self, store: Any, node: int) -> None:
        """One poll: send this node's deletions, and repeat those of its peers. RuntimeError if the
        store is gone.
        """
        deleted = self._detect(settled=True)
        if deleted:
            store.set(f"gone/{store.add('gone/count', 1)}", json.dumps([node, deleted]))
        # Never wait for a key that is not there yet: torchrun itself would have to wait.
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
        """What has been deleted -> when that was noticed.

        `settled`: only what two polls have missed, under any name, since one poll may miss a file
        that is renamed meanwhile; and only if nothing in it was new before, as in a folder that is
        still being written.
        """
        older, last, missing = self._snapshots
        now = take_snapshot(self._folder)
        self._snapshots = [last, missing, now]
        deleted = {}
        for path in find_deleted(last, now, self.deleted):
            before = _files_below(older, path)
            files = _files_below(last, path)
            was_missing = not files.keys() & missing.files.keys() and path not in missing.files
            if not settled or (was_missing and files.items() <= before.items()):
                deleted[path] = missing.started if was_missing else now.started
        self.deleted.update(deleted)
        return deleted

    def _repeat(self, path: str, when: float) -> bool:
        """Delete what a peer has deleted at that time, unless it is newer.

        Returns False if it has changed too recently to decide.
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
        for each in reversed(paths):
            with suppress(OSError):
                if each.is_dir() and not each.is_symlink():
                    each.rmdir()
                else:
                    self._record(str(each.relative_to(self._folder)), None)
                    each.unlink()
        self._snapshots = [
            _excluding(snapshot, path) for snapshot in self._snapshots
        ]  # not deleted by this node
        return True


def _last_change(paths: Collection[Path]) -> float:
    """The latest change of any of these files and folders, as a Unix timestamp; 0 if none exists."""
    changed = 0.0
    for path in paths:
        with suppress(FileNotFoundError):
            info = path.lstat()
            changed = max(changed, info.st_mtime, info.st_ctime)
    return changed


def take_snapshot(folder: Path) -> Snapshot:
    """All finished files and folders below a folder."""
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


def find_deleted(before: Snapshot, now: Snapshot, earlier: Collection[str] = ()) -> list[str]:
    """Files and folders that no longer exist, without those that were renamed; of a folder only its
    own path.

    `earlier`: what had been deleted before; a folder that lost its last file by that counts, too.
    """
    renamed = {file for path, file in now.files.items() if path not in before.files}
    emptied = {str(parent) for path in earlier for parent in Path(path).parents}
    deleted: list[str] = []
    for path in sorted({*before.folders, *before.files} - {*now.folders, *now.files}):
        if any(path.startswith(f"{parent}{os.sep}") for parent in deleted):
            continue
        files = set(_files_below(before, path).values())
        if (files or path in emptied) and not renamed & files:
            deleted.append(path)
    return deleted


def _files_below(snapshot: Snapshot, path: str) -> dict[str, FileId]:
    """The file itself, or all files of the folder."""
    if path in snapshot.files:
        return {path: snapshot.files[path]}
    return {
        name: file for name, file in snapshot.files.items() if name.startswith(f"{path}{os.sep}")
    }


def _excluding(snapshot: Snapshot, path: str) -> Snapshot:
    """The snapshot without a file, or without a folder and everything in it."""
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
