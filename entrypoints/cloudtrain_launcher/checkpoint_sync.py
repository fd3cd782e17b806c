"""Synchronisation of all nodes' checkpoint folders before a restart. Standard library only.

Ordinary programs assume one disk: rank 0 saves and all ranks load; files deleted by rank 0 are
gone. On SageMaker and Azure ML each node has a separate checkpoint folder. The platform restores
all files on every node at its own start, but does not notice a restart in place. Before such a
restart each node fetches files saved by its peers since the previous start, and deletes files
deleted by any node. Nodes that share a disk find no difference.

While programs run, each node repeats its peers' deletions of whole folders: the first rank deletes
an old checkpoint, and the files of the other nodes would remain and fill disks and storage.

The caller passes torchrun's store.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple

from cloudtrain_launcher.checkpoint_files import Entry, fetch_files, list_files, serve_files
from cloudtrain_launcher.storage_sync import UNFINISHED_SUFFIXES

LOCAL_ONLY_MARKER = ".own"
"""Marker of a folder among the checkpoints that only its own node needs before a restart."""

PEER_TIMEOUT = timedelta(hours=2)
"""Maximum wait for a peer that is still copying; a failed peer reports its error."""

POLL_SECONDS = 2.0
"""Seconds between two looks for deleted folders."""

STOP_TIMEOUT_SECONDS = 5.0
"""Maximum wait for the end of a poll: the store's machine may not answer."""


class NodeReport(NamedTuple):
    """Report of a node to its peers before a start."""

    address: tuple[str, int]
    """Host and port of its file server."""
    token: str
    """Secret for the file server."""
    files: Mapping[str, Entry]
    """Its files, by path relative to the checkpoint folder."""
    changed: frozenset[str]
    """Its files written since the previous start."""
    deleted: frozenset[str]
    """Its files deleted since the previous start."""
    deletion_times: Mapping[str, int] = {}
    """Folder deleted while its programs ran -> time in nanoseconds since 1970."""

    def to_json(self) -> str:
        """Return the report as a JSON array, for the store."""
        changed = sorted(self.changed)
        deleted = sorted(self.deleted)
        return json.dumps(
            [self.address, self.token, self.files, changed, deleted, self.deletion_times]
        )

    @classmethod
    def from_json(cls, text: bytes) -> NodeReport:
        """Parse a report written by `to_json`."""
        (host, port), token, files, changed, deleted, deletion_times = json.loads(text)
        entries = {path: Entry(*entry) for path, entry in files.items()}
        return cls(
            (host, port), token, entries, frozenset(changed), frozenset(deleted), deletion_times
        )


class CheckpointSync:
    """Synchronisation of one node's checkpoint folder with its peers.

    `address`: host name or address of this node for its peers. `journal`: a file for `StorageSync`,
    which lists each fetched or deleted file beforehand.
    """

    def __init__(
        self, folder: Path, address: str, journal: Path, log: Callable[[str], None]
    ) -> None:
        self._folder = folder
        self._address = address
        self._journal = journal
        self._log = log
        self._files: dict[str, Entry] | None = None
        """Files at the previous start; None before the first one."""
        self._deletions = DeletionSync(folder, self._record)

    def before_start(self, store: Any, node: int, nodes: int) -> None:
        """Synchronise the folders. Call it on all nodes while no program runs.

        Raise RuntimeError on all nodes if one of them fails.
        """
        if nodes == 1:
            return

        if self._files is not None:
            self._deletions.stop()
            self._exchange(store, node, nodes)

        self._files = list_files(self._folder)
        self._deletions.start(store, node)

    def stop(self) -> None:
        """End the threads before torchrun exits."""
        if self._files is not None:
            self._deletions.stop()

    def _exchange(self, store: Any, node: int, nodes: int) -> None:
        before = self._files or {}
        files = list_files(self._folder)
        changed = frozenset(path for path, entry in files.items() if before.get(path) != entry)
        deleted = frozenset(before.keys() - files.keys())
        token = secrets.token_hex(16)

        with serve_files(self._folder, files, token) as port:
            report = NodeReport(
                (self._address, port), token, files, changed, deleted, self._deletions.deleted
            )
            store.set(f"checkpoints/{node}", report.to_json())
            reports = [
                NodeReport.from_json(_wait_for(store, f"checkpoints/{peer}"))
                for peer in range(nodes)
            ]
            error = ""

            try:
                self._apply(reports, node)
            except OSError as failed:
                error = (
                    f"node {node} cannot copy the checkpoints of other nodes:"
                    f" {failed.strerror or failed}"
                )

            store.set(f"checkpoints/done/{node}", error or "ok")

            for peer in range(nodes):  # serve files until all peers have finished
                result = _wait_for(store, f"checkpoints/done/{peer}").decode()
                if result != "ok":
                    raise RuntimeError(result)

    def _apply(self, reports: Sequence[NodeReport], node: int) -> None:
        """Delete and fetch files of this node, as the nodes' reports require."""
        obsolete = sorted(deleted_paths(reports) & reports[node].files.keys())

        for path in obsolete:
            self._record(path, None)
            (self._folder / path).unlink(missing_ok=True)
            _remove_empty_parents(self._folder, path)

        downloads = files_to_fetch(reports, node)

        for peer, files in sorted(downloads.items()):
            fetch_files(
                reports[peer].address, reports[peer].token, files, self._folder, self._record
            )

        sizes: list[int] = []
        for files in downloads.values():
            sizes += [entry.size for entry in files.values()]

        if sizes:
            self._log(
                f"fetched {len(sizes)} checkpoint files from other nodes, {sum(sizes) / 1e6:.1f} MB"
            )

        if obsolete:
            self._log(f"deleted {len(obsolete)} checkpoint files that other nodes have deleted")

    def _record(self, path: str, entry: Entry | None) -> None:
        """Append planned changes to the journal, to tell them from a program's in `StorageSync`."""
        with self._journal.open("a", encoding="utf-8") as journal:
            journal.write(json.dumps([str(self._folder / path), entry]) + "\n")


class DeletionSync:
    """Thread that sends one node's deletions of folders to its peers and repeats their deletions.

    `record` is called with a relative path and None before each repeated deletion of a file.
    """

    def __init__(self, folder: Path, record: Callable[[str, None], None]) -> None:
        self._folder = folder
        self._record = record
        self._polls = [dict[str, int]()] * 2
        """Folder -> inode at the latest two polls, newest last."""
        self._n_received = 0
        self._stopped = threading.Event()
        self._thread = threading.Thread()
        self.deleted: dict[str, int] = {}
        """Folder deleted on this node since `start` -> time, in nanoseconds since 1970."""

    def start(self, store: Any, node: int) -> None:
        """Start the thread, which polls every `POLL_SECONDS`."""
        self.deleted = {}
        self._n_received = 0
        self._polls = [_finished_folders(self._folder)] * 2
        self._stopped = threading.Event()
        args = (store, node, self._stopped)
        self._thread = threading.Thread(target=self._work, args=args, name="deletions", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop the thread; `deleted` is complete afterwards."""
        self._stopped.set()
        if self._thread.is_alive():
            self._thread.join(STOP_TIMEOUT_SECONDS)

        self._detect()
        self._detect()
        for path in list(self.deleted):
            if (self._folder / path).exists():
                del self.deleted[path]

    def _work(self, store: Any, node: int, stopped: threading.Event) -> None:
        with suppress(RuntimeError):  # the first node and its store have ended
            while not stopped.wait(POLL_SECONDS):
                self.exchange(store, node)

    def exchange(self, store: Any, node: int) -> None:
        """Send this node's deletions and repeat its peers'. Raise RuntimeError without a store."""
        deleted = self._detect()
        if deleted:
            store.set(f"gone/{store.add('gone/count', 1)}", json.dumps([node, deleted]))

        # Do not wait for a missing key: torchrun itself would have to wait.
        while self._n_received < store.add("gone/count", 0) and store.check(
            [f"gone/{self._n_received + 1}"]
        ):
            self._n_received += 1
            peer, folders = json.loads(store.get(f"gone/{self._n_received}"))
            if peer == node:
                continue
            for path, when in folders.items():
                self._repeat(path, when)

    def _detect(self) -> dict[str, int]:
        """Return folders that the last two polls miss under any name -> time of the first one."""
        before, last = self._polls
        time_now = time.time_ns()
        latest = _finished_folders(self._folder)
        self._polls = [last, latest]
        gone = sorted(before.keys() - last.keys() - latest.keys())
        deleted = {}

        for path in gone:
            is_renamed = before[path] in latest.values()
            if not is_renamed and str(Path(path).parent) not in gone:
                deleted[path] = time_now

        self.deleted.update(deleted)

        return deleted

    def _repeat(self, path: str, when: int) -> None:
        """Delete a folder that a peer deleted at that time, unless it has changed since."""
        folder = self._folder / path
        files: list[Path] = []
        for top, _, names in os.walk(folder):
            files += [Path(top, name) for name in names]

        changes = [file.lstat().st_ctime_ns for file in files if os.path.lexists(file)]
        last_seen = when - 2 * POLL_SECONDS * 1e9
        if folder.is_symlink() or max(changes, default=0) > last_seen:
            return
        for file in files:
            self._record(str(file.relative_to(self._folder)), None)

        shutil.rmtree(folder, ignore_errors=True)
        for poll in self._polls:
            for name in list(poll):
                if f"{name}/".startswith(f"{path}/"):
                    del poll[name]


def _finished_folders(top: Path) -> dict[str, int]:
    """Return finished folders below a folder, by relative path, with their inodes."""
    inodes = {}

    for parent, folders, _ in os.walk(top):
        folders[:] = [name for name in folders if not name.endswith(UNFINISHED_SUFFIXES)]
        for name in folders:
            path = Path(parent, name)
            with suppress(OSError):
                if not path.is_symlink():
                    inodes[str(path.relative_to(top))] = path.stat().st_ino

    return inodes


def deleted_paths(reports: Sequence[NodeReport]) -> set[str]:
    """Return paths that any node has deleted, unless a node has written the file again."""
    changed = set[str]().union(*(report.changed for report in reports))
    deleted = set[str]().union(*(report.deleted for report in reports)) - changed

    for path in _all_paths(reports):
        parents = set(map(str, Path(path).parents))  # the folder also includes other nodes' files
        times: list[int] = []
        for report in reports:
            times += [report.deletion_times[p] for p in parents & report.deletion_times.keys()]

        written = [report.files[path].modified for report in reports if path in report.files]
        if times and max(written) < max(times):
            deleted.add(path)

    return deleted


def _all_paths(reports: Sequence[NodeReport]) -> set[str]:
    """Return the files that any node has."""
    return set[str]().union(*(report.files for report in reports))


def files_to_fetch(reports: Sequence[NodeReport], node: int) -> dict[int, dict[str, Entry]]:
    """Return peer -> files to fetch from it: files missing or older on this node."""
    local_files = reports[node].files
    deleted = deleted_paths(reports)
    paths = _all_paths(reports)
    markers = [Path(path) for path in paths if Path(path).name == LOCAL_ONLY_MARKER]
    local_only = tuple(f"{marker.parent}{os.sep}" for marker in markers)
    downloads: dict[int, dict[str, Entry]] = {}

    for path in sorted(paths - deleted):
        if path.startswith(local_only) and path not in local_files:
            continue

        newest = _newest(reports, path)
        entry = reports[newest].files[path]
        is_newer = path in reports[newest].changed and local_files.get(path) != entry
        if newest != node and (path not in local_files or is_newer):
            downloads.setdefault(newest, {})[path] = entry

    return downloads


def _newest(reports: Sequence[NodeReport], path: str) -> int:
    """Return the node with the newest version of a file; of equal ones the first."""
    peers = [peer for peer, report in enumerate(reports) if path in report.files]
    return max(
        peers,
        key=lambda peer: (path in reports[peer].changed, reports[peer].files[path].modified, -peer),
    )


def sync_before_each_start(agent: Any, sync: CheckpointSync) -> None:
    """Patch torchrun's agent to synchronise the checkpoint folders before it starts the ranks."""
    start = agent._start_workers

    def sync_and_start(self: Any, group: Any) -> Any:
        sync.before_start(group.store, group.group_rank, group.group_world_size)
        return start(self, group)

    def stop_and_leave(self: Any) -> Any:
        sync.stop()  # the store ends with the first node that leaves
        return super(agent, self)._exit_barrier()

    agent._start_workers = sync_and_start
    agent._exit_barrier = stop_and_leave


def _wait_for(store: Any, key: str) -> bytes:
    store.wait([key], PEER_TIMEOUT)
    value: bytes = store.get(key)
    return value


def _remove_empty_parents(folder: Path, path: str) -> None:
    with suppress(OSError):  # not empty
        for parent in Path(path).parents[:-1]:
            (folder / parent).rmdir()
