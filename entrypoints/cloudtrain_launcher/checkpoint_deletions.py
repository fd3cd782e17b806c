"""What a program deletes among the checkpoints on one node goes on all nodes, while it runs. Standard library only.

On a shared disk rank 0 deletes an old checkpoint with what all ranks wrote into it. Where each node has a folder of
its own the other nodes' parts would stay, and fill disks and storage. So every node looks again and again what has
gone, and tells its peers by torchrun's store, which is handed in.
"""

from __future__ import annotations

import json
import os
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, Callable, Collection, Mapping, NamedTuple

from cloudtrain_launcher.storage_sync import UNFINISHED_SUFFIXES

POLL_SECONDS = 2.0
"""Between two looks."""

STOP_TIMEOUT_SECONDS = 5.0
"""How long an end waits for a look that is under way: the store may be on a machine that does not answer."""


class FileId(NamedTuple):
    """What tells a file from another, whatever its name."""

    inode: int
    size: int
    modified: int


class Snapshot(NamedTuple):
    """One look: all files and folders by their paths."""

    files: Mapping[str, FileId]
    folders: Mapping[str, int]
    """Folder -> inode."""
    since: int = 0
    """When it began, in nanoseconds since 1970: whatever is made after a look that did not find it is newer."""


class DeletionSync:
    """One node's. `note`: told of each file before it is deleted after a peer's example."""

    def __init__(self, folder: Path, note: Callable[[str, None], None]) -> None:
        self._folder, self._note = folder, note
        self._snapshots = [Snapshot({}, {})] * 3
        self._heard, self._pending = 0, list[tuple[str, float]]()
        self._ended, self._thread = threading.Event(), threading.Thread()
        self.gone: dict[str, int] = {}
        """What went on this node since `begin`, files and folders, and when that was seen (nanoseconds since 1970)."""

    def begin(self, store: Any, node: int) -> None:
        """From now on tell peers, and do as they do."""
        self.gone, self._heard, self._pending = {}, 0, []
        self._snapshots = [take_snapshot(self._folder)] * 3
        self._ended = threading.Event()
        work = (store, node, self._ended)
        self._thread = threading.Thread(target=self._work, args=work, name="deletions", daemon=True)
        self._thread.start()

    def end(self) -> None:
        """No more: `gone` says all that went."""
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join(STOP_TIMEOUT_SECONDS)
        self._detect(settled=False)
        self.gone = {path: when for path, when in self.gone.items() if not os.path.lexists(self._folder / path)}

    def _work(self, store: Any, node: int, ended: threading.Event) -> None:
        with suppress(RuntimeError):  # the first node has ended, and the store with it
            while not ended.wait(POLL_SECONDS):
                self.exchange(store, node)

    def exchange(self, store: Any, node: int) -> None:
        """One look, told to all; and what the others have told since."""
        told = self._detect(settled=True)
        if told:
            store.set(f"gone/{store.add('gone/count', 1)}", json.dumps([node, told]))
        # Never wait for what is not there yet: torchrun itself would wait for us.
        while self._heard < store.add("gone/count", 0) and store.check([f"gone/{self._heard + 1}"]):
            self._heard += 1
            peer, paths = json.loads(store.get(f"gone/{self._heard}"))
            self._pending += [(path, when / 1e9) for path, when in paths.items() if peer != node]
        self._pending = [(path, when) for path, when in self._pending if not self._apply(path, when)]

    def _detect(self, *, settled: bool) -> dict[str, int]:
        """What has gone, and when that was seen.

        `settled`: it had gone by the last look and still has, under any name, since one look alone may miss what is
        renamed while it looks; and nothing of it was new before it went, as in a draft.
        """
        older, last, missing = self._snapshots
        now = take_snapshot(self._folder)
        self._snapshots = [last, missing, now]
        found = {}
        for path in find_deleted(last, now, self.gone):
            before, part = _files_below(older, path), _files_below(last, path)
            went = not part.keys() & missing.files.keys() and path not in missing.files
            if not settled or (went and part.items() <= before.items()):
                found[path] = missing.since if went else now.since
        self.gone.update(found)
        return found

    def _apply(self, path: str, when: float) -> bool:
        """Delete what a peer had deleted at that time, unless it is newer. False: not yet, it is too fresh to tell."""
        goal = self._folder / path
        inside = [goal, *goal.rglob("*")] if goal.is_dir() and not goal.is_symlink() else [goal]
        changed = 0.0
        for each in inside:
            with suppress(FileNotFoundError):
                about = each.lstat()
                changed = max(changed, about.st_mtime, about.st_ctime)
        if not changed or changed > when:
            return True
        if time.time() - changed < 2 * POLL_SECONDS:
            return False
        for each in reversed(inside):
            with suppress(OSError):
                if each.is_dir() and not each.is_symlink():
                    each.rmdir()
                else:
                    self._note(str(each.relative_to(self._folder)), None)
                    each.unlink()
        self._snapshots = [_excluding(seen, path) for seen in self._snapshots]  # its going is not this node's doing
        return True


def take_snapshot(folder: Path) -> Snapshot:
    """All finished files and folders."""
    since = time.time_ns()
    files, inodes = dict[str, FileId](), dict[str, int]()
    for top, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if not name.endswith(UNFINISHED_SUFFIXES)]
        for name in (*folders, *names):
            path = Path(top, name)
            with suppress(OSError):
                about = path.lstat()
                if name in folders:
                    inodes[str(path.relative_to(folder))] = about.st_ino
                elif not name.endswith(UNFINISHED_SUFFIXES):
                    files[str(path.relative_to(folder))] = FileId(about.st_ino, about.st_size, about.st_mtime_ns)
    return Snapshot(files, inodes, since)


def find_deleted(before: Snapshot, now: Snapshot, earlier: Collection[str] = ()) -> list[str]:
    """Files and folders that are no more, each only by the topmost name, less those that have another name now.

    `earlier`: what had gone before; a folder that has lost its last file to it goes too.
    """
    moved = {about for path, about in now.files.items() if path not in before.files}
    emptied = {str(top) for path in earlier for top in Path(path).parents}
    gone: list[str] = []
    for path in sorted({*before.folders, *before.files} - {*now.folders, *now.files}):
        if any(path.startswith(f"{top}{os.sep}") for top in gone):
            continue
        inside = set(_files_below(before, path).values())
        if (inside or path in emptied) and not moved & inside:
            gone.append(path)
    return gone


def _files_below(seen: Snapshot, path: str) -> dict[str, FileId]:
    """A file, or all files of a folder."""
    if path in seen.files:
        return {path: seen.files[path]}
    return {name: about for name, about in seen.files.items() if name.startswith(f"{path}{os.sep}")}


def _excluding(seen: Snapshot, path: str) -> Snapshot:
    """All but a file, or a folder with all that is in it."""
    below = f"{path}{os.sep}"
    files = {name: about for name, about in seen.files.items() if name != path and not name.startswith(below)}
    folders = {name: node for name, node in seen.folders.items() if name != path and not name.startswith(below)}
    return Snapshot(files, folders, seen.since)
