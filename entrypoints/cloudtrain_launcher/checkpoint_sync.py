"""Makes the checkpoint folders of all nodes equal whenever their programs are about to be started
again.

Ordinary programs assume one disk: rank 0 saves and all ranks load; what rank 0 deletes is gone. On
SageMaker and Azure ML each node has a checkpoint folder of its own. The platform restores the files
of all nodes on every node when it starts them. Before a restart in place, which the platform does
not notice, it is done here: each node fetches from its peers what they have saved since the
previous start, and deletes what any of them has deleted. Nodes that share a disk find nothing to
do. What is deleted while programs run: see `checkpoint_deletions`.

Standard library only: torchrun's store is passed in.
"""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple

from cloudtrain_launcher.checkpoint_deletions import DeletionSync
from cloudtrain_launcher.checkpoint_files import Entry, fetch_files, list_files, serve_files

LOCAL_ONLY_MARKER = ".own"
"""A file in a folder among the checkpoints: only the node that wrote that folder needs it before a
restart.
"""

PEER_TIMEOUT = timedelta(hours=2)
"""How long nodes wait for a peer that is still copying; one that has failed reports it."""


class NodeReport(NamedTuple):
    """What a node tells its peers before a start."""

    address: tuple[str, int]
    """The host and port at which it serves its files."""
    token: str
    """The secret for that."""
    files: Mapping[str, Entry]
    """Its files, by their paths relative to the checkpoint folder."""
    changed: frozenset[str]
    """Those of them that it has written since the previous start."""
    deleted: frozenset[str]
    """Files that it had at the previous start and has deleted since."""
    deletion_times: Mapping[str, int] = {}
    """Files and folders deleted while its programs ran -> when, in nanoseconds since 1970: see
    `DeletionSync`.
    """

    def to_json(self) -> str:
        """The report as a JSON array, for the store."""
        changed = sorted(self.changed)
        deleted = sorted(self.deleted)
        return json.dumps(
            [self.address, self.token, self.files, changed, deleted, self.deletion_times]
        )

    @classmethod
    def from_json(cls, text: bytes) -> NodeReport:
        """The report that `to_json` has written."""
        (host, port), token, files, changed, deleted, deletion_times = json.loads(text)
        entries = {path: Entry(*entry) for path, entry in files.items()}
        return cls(
            (host, port), token, entries, frozenset(changed), frozenset(deleted), deletion_times
        )


class CheckpointSync:
    """Keeps one node's checkpoint folder equal to those of its peers.

    `address`: the host name or address by which peers reach this node. `journal`: a file for
    `StorageSync`, to which every file that is fetched or deleted on behalf of a peer is appended
    beforehand.
    """

    def __init__(
        self, folder: Path, address: str, journal: Path, log: Callable[[str], None]
    ) -> None:
        self._folder = folder
        self._address = address
        self._journal = journal
        self._log = log
        self._files: dict[str, Entry] | None = None
        """The files at the previous start; None before the first one."""
        self._deletions = DeletionSync(folder, self._record)

    def before_start(self, store: Any, node: int, nodes: int) -> None:
        """Make the folders equal; to be called on all nodes, before programs start and while none
        runs.

        RuntimeError on all nodes if one of them fails.
        """
        if nodes == 1:
            return
        if self._files is not None:
            self._deletions.stop()
            self._exchange(store, node, nodes)
        self._files = list_files(self._folder)
        self._deletions.start(store, node)

    def stop(self) -> None:
        """End the threads; torchrun is about to exit."""
        if self._files is not None:
            self._deletions.stop()

    def _exchange(self, store: Any, node: int, nodes: int) -> None:
        before = self._files or {}
        files = list_files(self._folder)
        changed = frozenset(path for path, entry in files.items() if before.get(path) != entry)
        deleted = frozenset(before.keys() - files.keys())
        token = secrets.token_hex(16)
        with serve_files(self._folder, files, token) as port:
            own = NodeReport(
                (self._address, port), token, files, changed, deleted, self._deletions.deleted
            )
            store.set(f"checkpoints/{node}", own.to_json())
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
        """Delete and fetch files of this node, as the reports of all nodes require."""
        obsolete = sorted(deleted_paths(reports) & reports[node].files.keys())
        for path in obsolete:
            self._record(path, None)
            (self._folder / path).unlink(missing_ok=True)
            _remove_empty_parents(self._folder, path)
        wanted = files_to_fetch(reports, node)
        for peer, files in sorted(wanted.items()):
            fetch_files(
                reports[peer].address, reports[peer].token, files, self._folder, self._record
            )
        sizes = [entry.size for files in wanted.values() for entry in files.values()]
        if sizes:
            self._log(
                f"fetched {len(sizes)} checkpoint files from other nodes, {sum(sizes) / 1e6:.1f} MB"
            )
        if obsolete:
            self._log(f"deleted {len(obsolete)} checkpoint files that other nodes have deleted")

    def _record(self, path: str, entry: Entry | None) -> None:
        """Append to the journal what is about to be done, so that `StorageSync` does not take it
        for a program's.
        """
        with self._journal.open("a", encoding="utf-8") as journal:
            journal.write(json.dumps([str(self._folder / path), entry]) + "\n")


def deleted_paths(reports: Sequence[NodeReport]) -> set[str]:
    """Paths that any node has deleted, unless a node has written the file again."""
    changed = {path for report in reports for path in report.changed}
    deleted = {path for report in reports for path in report.deleted} - changed
    for path in {path for report in reports for path in report.files}:
        parents = set(
            map(str, Path(path).parents)
        )  # a deleted folder includes what other nodes wrote into it
        times = [
            report.deletion_times[parent]
            for report in reports
            for parent in parents & report.deletion_times.keys()
        ]
        if times and all(
            report.files[path].modified < max(times) for report in reports if path in report.files
        ):
            deleted.add(path)
    return deleted


def files_to_fetch(reports: Sequence[NodeReport], node: int) -> dict[int, dict[str, Entry]]:
    """Peer -> the files that this node must fetch from it: those that it lacks, or has in an older
    version.
    """
    own = reports[node].files
    deleted = deleted_paths(reports)
    paths = {path for report in reports for path in report.files}
    local_only = tuple(
        f"{Path(path).parent}{os.sep}" for path in paths if Path(path).name == LOCAL_ONLY_MARKER
    )
    wanted: dict[int, dict[str, Entry]] = {}
    for path in sorted(paths - deleted):
        if path.startswith(local_only) and path not in own:
            continue
        newest = _newest(reports, path)
        entry = reports[newest].files[path]
        is_newer = path in reports[newest].changed and own.get(path) != entry
        if newest != node and (path not in own or is_newer):
            wanted.setdefault(newest, {})[path] = entry
    return wanted


def _newest(reports: Sequence[NodeReport], path: str) -> int:
    """The node with the newest version of a file; of equal ones the first node."""
    peers = [peer for peer, report in enumerate(reports) if path in report.files]
    return max(
        peers,
        key=lambda peer: (path in reports[peer].changed, reports[peer].files[path].modified, -peer),
    )


def sync_before_each_start(agent: Any, sync: CheckpointSync) -> None:
    """Patch the class of torchrun's agent to make the checkpoint folders equal before it starts the
    ranks.
    """
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
