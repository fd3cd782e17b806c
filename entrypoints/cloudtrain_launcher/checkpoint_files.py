"""Files of a checkpoint folder: listed, served to peers, and fetched. Standard library only."""

from __future__ import annotations

import hmac
import json
import os
import socket
import socketserver
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from io import BufferedRWPair
from pathlib import Path
from typing import Any, NamedTuple

from cloudtrain_launcher.storage_sync import UNFINISHED_SUFFIXES, finished_files

BLOCK_BYTES = 1 << 22
CONNECT_TIMEOUT_SECONDS = 60
SEND_TIMEOUT_SECONDS = 600


class Entry(NamedTuple):
    """A file, or a link inside the folder."""

    size: int
    """Bytes; 0 for a link."""
    modified: int
    """Nanoseconds since 1970; 0 for a link."""
    link: str = ""
    """Target of a link, relative to its folder; empty for a file."""


def list_files(folder: Path) -> dict[str, Entry]:
    """Return all finished files below a folder by relative path; follow links to outside."""
    files = {}

    for path in finished_files(folder):
        with suppress(OSError):
            entry = _entry(path)
            if entry is not None:
                files[str(path.relative_to(folder))] = entry

    return files


def _entry(path: Path) -> Entry | None:
    """Return the entry of a path; None for other kinds, such as a pipe."""
    if path.is_symlink():
        target = path.readlink()
        if not target.is_absolute():
            return Entry(0, 0, str(target))

    info = path.stat()
    if not path.is_file():
        return None

    return Entry(info.st_size, info.st_mtime_ns)


@contextmanager
def serve_files(folder: Path, files: Mapping[str, Entry], token: str) -> Iterator[int]:
    """Serve these files to peers with the token, until the context ends; yield the port."""
    with _Server(("", 0), _Sender) as server:
        server.folder = folder
        server.files = files
        server.token = token
        thread = threading.Thread(
            target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True
        )
        thread.start()

        try:
            yield server.server_address[1]
        finally:
            server.shutdown()
            thread.join()


class _Server(socketserver.ThreadingTCPServer):
    daemon_threads = True
    allow_reuse_address = True
    request_queue_size = 128
    folder: Path
    files: Mapping[str, Entry]
    token: str

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Do nothing: the peer that lacks a file reports the error."""


class _Sender(socketserver.StreamRequestHandler):
    def handle(self) -> None:
        """Send one file per line `[token, path]` from the peer."""
        server = self.server
        assert isinstance(server, _Server)  # noqa: S101  (see serve_files)

        for line in self.rfile:
            token, path = json.loads(line)
            if not hmac.compare_digest(token, server.token) or path not in server.files:
                return

            with (server.folder / path).open("rb") as file:
                self.connection.settimeout(SEND_TIMEOUT_SECONDS)
                self.connection.sendfile(file, count=server.files[path].size or None)


def fetch_files(
    address: tuple[str, int],
    token: str,
    files: Mapping[str, Entry],
    folder: Path,
    record: Callable[[str, Entry], None],
) -> None:
    """Fetch files from a peer at `address` into the folder. Raise OSError if one fails.

    Each file appears whole, with its time of modification. `record` is called with its path before
    that.
    """
    with (
        socket.create_connection(address, CONNECT_TIMEOUT_SECONDS) as connection,
        connection.makefile("rwb") as stream,
    ):
        for path, entry in files.items():
            target = _safe_join(folder, path)
            target.parent.mkdir(parents=True, exist_ok=True)
            draft = target.with_name(f".{target.name[:200]}{UNFINISHED_SUFFIXES[1]}")

            try:
                if entry.link:
                    draft.unlink(missing_ok=True)
                    draft.symlink_to(entry.link)
                else:
                    stream.write(json.dumps([token, path]).encode() + b"\n")
                    stream.flush()
                    _receive(stream, draft, entry)

                record(path, entry)
                draft.replace(target)
            finally:
                draft.unlink(missing_ok=True)


def _receive(stream: BufferedRWPair, draft: Path, entry: Entry) -> None:
    remaining = entry.size
    with draft.open("wb") as file:
        while remaining:
            block = stream.read(min(remaining, BLOCK_BYTES))
            if not block:
                raise ConnectionError("the connection to another node was lost")

            file.write(block)
            remaining -= len(block)

    os.utime(draft, ns=(entry.modified, entry.modified))  # programs look for the newest checkpoint


def _safe_join(folder: Path, path: str) -> Path:
    if Path(path).is_absolute() or ".." in Path(path).parts:
        raise OSError(f"a peer offers {path!r}, which is not a path inside the checkpoint folder")
    return folder / path
