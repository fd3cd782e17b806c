"""Makes the checkpoint folder one folder of all nodes whenever their programs are about to start again.

Ordinary programs know one disk: rank 0 saves and all ranks load; what rank 0 deletes is gone. On SageMaker and Azure ML
each node has a checkpoint folder of its own. The platform brings all nodes' files to every node when it starts them;
before a restart in place, which it does not see, it is done here: each node gets from its peers what they saved since
the last start, and loses what any of them deleted (see `deleting` for what goes while programs run). Where nodes share
a disk they find nothing to do. Standard library only: the store is torchrun's, and is handed in.
"""

from __future__ import annotations

import hmac
import json
import os
import secrets
import socket
import socketserver
import threading
from contextlib import contextmanager, suppress
from datetime import timedelta
from io import BufferedRWPair
from pathlib import Path
from typing import Any, Callable, Iterator, Mapping, NamedTuple

from cloudtrain_launcher.checkpoint_deletions import DeletionSync
from cloudtrain_launcher.storage_sync import UNFINISHED_SUFFIXES

LOCAL_ONLY_MARKER = ".own"
"""A file by which a folder among the checkpoints says that only the node that wrote it needs it before a restart."""

PEER_TIMEOUT = timedelta(hours=2)
"""How long nodes wait for a peer that still copies; one that has failed says so."""

BLOCK_BYTES = 1 << 22


class Entry(NamedTuple):
    """One file, or one link inside the folder (`link` is its target)."""

    size: int
    modified: int
    """Nanoseconds."""
    link: str = ""


class NodeReport(NamedTuple):
    """What a node tells its peers before a start."""

    address: tuple[str, int]
    token: str
    files: Mapping[str, Entry]
    changed: frozenset[str]
    """Of these files those that it has written since the last start."""
    gone: frozenset[str]
    """Files that it had, and has deleted since."""
    went: Mapping[str, int] = {}
    """Files and folders that went while its programs ran, and when, in nanoseconds since 1970: see `Deletions`."""


class CheckpointSync:
    """One node's checkpoint folder. `address`: by which peers reach this node. `journal`: see `StorageSync`."""

    def __init__(self, folder: Path, address: str, journal: Path, log: Callable[[str], None]) -> None:
        self._folder, self._address, self._journal, self._log = folder, address, journal, log
        self._before: dict[str, Entry] | None = None
        self._deletions = DeletionSync(folder, self._record)

    def before_start(self, store: Any, node: int, nodes: int) -> None:
        """Called on all nodes when no program runs and all are about to start. RuntimeError if a peer failed at it."""
        if nodes == 1:
            return
        if self._before is not None:
            self._deletions.end()
            self._sync(store, node, nodes)
        self._before = entries(self._folder)
        self._deletions.begin(store, node)

    def stop(self) -> None:
        """Torchrun is about to leave."""
        if self._before is not None:
            self._deletions.end()

    def _sync(self, store: Any, node: int, nodes: int) -> None:
        before, files = self._before or {}, entries(self._folder)
        changed = frozenset(path for path, entry in files.items() if before.get(path) != entry)
        token = secrets.token_hex(16)
        with _serve_files(self._folder, files, token) as port:
            gone = frozenset(before.keys() - files.keys())
            mine = NodeReport((self._address, port), token, files, changed, gone, self._deletions.gone)
            store.set(f"checkpoints/{node}", _encode(mine))
            told = [_decode(_wait_for(store, f"checkpoints/{peer}")) for peer in range(nodes)]
            trouble = ""
            try:
                self._apply(told, node)
            except OSError as error:
                trouble = f"node {node} cannot take over what other nodes saved: {error.strerror or error}"
            store.set(f"checkpoints/done/{node}", trouble or "ok")
            for peer in range(nodes):  # whoever leaves earlier takes its files along
                said = _wait_for(store, f"checkpoints/done/{peer}").decode()
                if said != "ok":
                    raise RuntimeError(said)

    def _apply(self, told: list[NodeReport], node: int) -> None:
        mine = told[node].files
        removed = [path for path in sorted(deleted_paths(told)) if path in mine]
        for path in removed:
            self._record(path, None)
            (self._folder / path).unlink(missing_ok=True)
            _remove_empty(self._folder, path)
        wanted = files_to_fetch(told, node)
        for peer, paths in sorted(wanted.items()):
            self._fetch(told[peer], paths)
        count = sum(len(paths) for paths in wanted.values())
        size = sum(told[peer].files[path].size for peer, paths in wanted.items() for path in paths)
        if count:
            self._log(f"brought {count} checkpoint files from other nodes, {size / 1e6:.1f} MB")
        if removed:
            self._log(f"removed {len(removed)} checkpoint files that other nodes have deleted")

    def _fetch(self, peer: NodeReport, paths: list[str]) -> None:
        with socket.create_connection(peer.address, timeout=60) as connection, connection.makefile("rwb") as stream:
            for path in paths:
                entry, goal = peer.files[path], _safe_join(self._folder, path)
                goal.parent.mkdir(parents=True, exist_ok=True)
                draft = goal.with_name(f".{goal.name[:200]}{UNFINISHED_SUFFIXES[1]}")
                try:
                    if entry.link:
                        draft.unlink(missing_ok=True)
                        draft.symlink_to(entry.link)
                    else:
                        stream.write(json.dumps([peer.token, path]).encode() + b"\n")
                        stream.flush()
                        _receive(stream, draft, entry)
                    self._record(path, entry)
                    draft.replace(goal)
                finally:
                    draft.unlink(missing_ok=True)

    def _record(self, path: str, entry: Entry | None) -> None:
        """Before it is done: whoever keeps this folder is to take it for another node's doing."""
        with self._journal.open("a", encoding="utf-8") as journal:
            journal.write(json.dumps([str(self._folder / path), entry]) + "\n")


def entries(folder: Path) -> dict[str, Entry]:
    """All finished files below a folder, by their paths; a link that leads out is the file that it leads to."""
    found = {}
    for top, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if not name.endswith(UNFINISHED_SUFFIXES)]
        for name in names + [name for name in folders if Path(top, name).is_symlink()]:
            path = Path(top, name)
            if not name.endswith(UNFINISHED_SUFFIXES):
                with suppress(OSError):
                    entry = _entry(path)
                    if entry is not None:
                        found[str(path.relative_to(folder))] = entry
    return found


def _entry(path: Path) -> Entry | None:
    if path.is_symlink():
        target = path.readlink()
        if not target.is_absolute():
            return Entry(0, 0, str(target))
    about = path.stat()
    return Entry(about.st_size, about.st_mtime_ns) if path.is_file() else None


def deleted_paths(told: list[NodeReport]) -> set[str]:
    """What any node has deleted, unless another has written it anew."""
    gone = {path for one in told for path in one.gone}
    gone = {path for path in gone if not any(path in one.changed for one in told)}
    for path in {path for one in told for path in one.files}:
        tops = set(map(str, Path(path).parents))  # folders, which take along what others wrote into them
        when = max((one.went[top] for one in told for top in tops & one.went.keys()), default=0)
        if when and all(one.files[path].modified < when for one in told if path in one.files):
            gone.add(path)
    return gone


def files_to_fetch(told: list[NodeReport], node: int) -> dict[int, list[str]]:
    """What a node lacks, or has an older one of, by the peer that has the newest."""
    mine, gone, found = told[node].files, deleted_paths(told), dict[int, list[str]]()
    own = {
        str(Path(path).parent) + os.sep for one in told for path in one.files if Path(path).name == LOCAL_ONLY_MARKER
    }
    for path in sorted({path for one in told for path in one.files} - gone):
        if path.startswith(tuple(own)) and path not in mine:
            continue
        holders = [peer for peer, one in enumerate(told) if path in one.files]
        best = max(holders, key=lambda peer: (path in told[peer].changed, told[peer].files[path].modified, -peer))
        newer = path in told[best].changed and mine.get(path) != told[best].files[path]
        if best != node and (path not in mine or newer):
            found.setdefault(best, []).append(path)
    return found


def sync_before_each_start(agent: Any, shared: CheckpointSync) -> None:
    """Have torchrun's agent (its class) make this node's folder like all others' before it starts the ranks."""
    start = agent._start_workers

    def level_and_start(self: Any, group: Any) -> Any:
        shared.before_start(group.store, group.group_rank, group.group_world_size)
        return start(self, group)

    def end_and_leave(self: Any) -> Any:
        shared.stop()  # the store goes with the first node that leaves
        return super(agent, self)._exit_barrier()

    agent._start_workers, agent._exit_barrier = level_and_start, end_and_leave


class _Sender(socketserver.StreamRequestHandler):
    def handle(self) -> None:
        """Send one file after the other, as long as the peer asks."""
        server: Any = self.server
        for line in self.rfile:
            token, path = json.loads(line)
            if not hmac.compare_digest(token, server.token) or path not in server.files:
                return
            with (server.folder / path).open("rb") as file:
                self.connection.settimeout(600)
                self.connection.sendfile(file, count=server.files[path].size or None)


class _Server(socketserver.ThreadingTCPServer):
    daemon_threads, allow_reuse_address, request_queue_size = True, True, 128

    def handle_error(self, request: Any, client_address: Any) -> None:
        """The peer tells of it: it is the one that lacks something."""


@contextmanager
def _serve_files(folder: Path, files: Mapping[str, Entry], token: str) -> Iterator[int]:
    """The port at which these files can be had by whoever knows the token."""
    with _Server(("", 0), _Sender) as server:
        server.folder, server.files, server.token = folder, files, token  # type: ignore[attr-defined]
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        thread.start()
        try:
            yield server.server_address[1]
        finally:
            server.shutdown()
            thread.join()


def _receive(stream: BufferedRWPair, draft: Path, entry: Entry) -> None:
    left = entry.size
    with draft.open("wb") as file:
        while left:
            block = stream.read(min(left, BLOCK_BYTES))
            if not block:
                raise ConnectionError("the connection to another node was lost")
            file.write(block)
            left -= len(block)
    os.utime(draft, ns=(entry.modified, entry.modified))  # programs look for the newest


def _wait_for(store: Any, key: str) -> bytes:
    store.wait([key], PEER_TIMEOUT)
    value: bytes = store.get(key)
    return value


def _encode(told: NodeReport) -> str:
    return json.dumps([told.address, told.token, told.files, sorted(told.changed), sorted(told.gone), told.went])


def _decode(text: bytes) -> NodeReport:
    (host, port), token, files, changed, gone, went = json.loads(text)
    entries = {path: Entry(*entry) for path, entry in files.items()}
    return NodeReport((host, port), token, entries, frozenset(changed), frozenset(gone), went)


def _safe_join(folder: Path, path: str) -> Path:
    if Path(path).is_absolute() or ".." in Path(path).parts:
        raise OSError(f"a peer offers {path!r}, which is no path inside the checkpoint folder")
    return folder / path


def _remove_empty(folder: Path, path: str) -> None:
    """Take away the folders that have lost their last file."""
    with suppress(OSError):
        for parent in Path(path).parents[:-1]:
            (folder / parent).rmdir()
