"""A run's log files as a mirror of what a cloud holds: each line once, whoever is killed in between."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from cloudtrain.private import FILE
from cloudtrain.runs.locks import take
from cloudtrain.runs.logs import log_file, split_events, stamp
from cloudtrain.runs.store import RunFolder, storing


class Mirror:
    """The log files of a run while somebody adds to them.

    How far each stream was read is an event, appended together with the events of those lines; log lines beyond it,
    of a reader that was killed in between, are cut off again.
    """

    def __init__(self, run: RunFolder) -> None:
        self._run = run
        last = run.last_event("cursor") or {}
        self.streams: dict[str, dict[str, Any]] = {name: dict(at) for name, at in last.get("streams", {}).items()}
        """Per stream of the cloud: how far it was read, in the cloud's own way."""
        self._sizes: dict[str, int] = dict(last.get("sizes", {}))

    def keep(self, node: int, lines: list[tuple[float, bytes]]) -> None:
        """Add lines of a node, each with its time as a Unix timestamp, and remember how far its stream was read."""
        events: list[dict[str, Any]] = []
        text = bytearray()
        for when, line in lines:
            told, said = split_events([line], node)
            events += told
            for words in said:
                text += stamp(when).encode() + b" " + words + b"\n"
        path, size = log_file(self._run.path, node), self._sizes.get(str(node), 0)
        with storing(path), open(os.open(path, os.O_RDWR | os.O_CREAT, FILE), "r+b") as file:
            file.truncate(size)
            file.seek(size)
            file.write(text)
        self._sizes[str(node)] = size + len(text)
        cursor = {"type": "cursor", "time": time.time(), "streams": self.streams, "sizes": self._sizes}
        self._run.append(*events, cursor)


@contextmanager
def reading(run: RunFolder) -> Iterator[bool]:
    """Whether nobody else is reading; nobody else begins meanwhile."""
    path = run.path / "logs" / "reading.lock"
    with storing(path):
        path.parent.mkdir(exist_ok=True)
        file = os.open(path, os.O_RDWR | os.O_CREAT, FILE)
    try:
        yield take(file, wait=False)
    finally:
        os.close(file)
