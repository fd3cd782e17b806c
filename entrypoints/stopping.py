"""Whether this node is to stop: asked by SIGTERM, by a file that appears, or by the clock. Standard library only."""

from __future__ import annotations

import itertools
import os
import signal
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Callable

LOOK_SECONDS = 1.0
LISTING_EVERY = 10
"""Looks, of which one also reads the folder: a mount may remember for long that a file was not there."""

PATIENCE_SECONDS = 5.0
"""How long a mount may take to answer where somebody waits for it."""

BY_TIME = "time"
"""What the file says when a node has left it for its peers, because the time is nearly over."""


class StopRequest:
    """A stop, asked for once and never taken back: `why` says by whom.

    `file`: its appearance asks for a stop; empty: there is none. `after_seconds`: when to stop by oneself, counted
    from now, because the platform would end the job shortly after without a word; 0: never.
    """

    def __init__(self, file: str, after_seconds: int, log: Callable[[str], None]) -> None:
        self.why = ""
        """sigterm, stop_file or time; empty while there is no stop."""
        self.since = 0.0
        """By the monotonic clock."""
        self.time = 0.0
        """By the wall clock."""
        self._log = log
        self._file = StopFile(file) if file else None
        self._deadline = time.monotonic() + after_seconds if after_seconds > 0 else float("inf")

    def listen(self) -> None:
        """From now on be asked. A file that is there already counts at once."""
        signal.signal(signal.SIGTERM, lambda *_: self._ask("sigterm"))
        if self._file:
            self._file.look()
            self._file.watch()

    def asked(self) -> bool:
        """Whether there is a stop; for the main thread only, which writes the log."""
        if not self.why and self._file and self._file.seen:
            if self._file.seen == BY_TIME:
                self._near_the_limit()
            else:
                self._ask("stop_file")
                self._log("a stop was asked for: stopping with a checkpoint")
        elif not self.why and time.monotonic() >= self._deadline:
            self._near_the_limit()
            if self._file:  # peers began at another time: none of them is to take this stop for a failure
                self._file.leave(BY_TIME)
        return bool(self.why)

    def asked_after_all(self) -> bool:
        """Look once more: the peers may have seen the file before we did."""
        if not self.why and self._file and not self._file.seen:
            self._file.look()
        return self.asked()

    def _near_the_limit(self) -> None:
        self._ask("time")
        self._log("the time limit is near: stopping with a checkpoint")

    def _ask(self, why: str) -> None:
        if not self.why:
            self.since, self.time, self.why = time.monotonic(), time.time(), why


class StopFile:
    """A file on a mount, looked for in threads of its own: a mount that hangs must not hold up what the ranks print.

    It stays where it is: a node that the platform starts anew must stop too.
    """

    def __init__(self, path: str) -> None:
        self._path = Path(path)
        self.seen = ""
        """What the file says, or that it is there; empty until it is."""

    def look(self) -> None:
        """Look now; a mount that does not answer in time has said no."""
        thread = threading.Thread(target=self._look, args=(True,), daemon=True, name="stop file")
        thread.start()
        thread.join(PATIENCE_SECONDS)

    def watch(self) -> None:
        """Look every second from now on."""
        threading.Thread(target=self._watch, daemon=True, name="stop file").start()

    def leave(self, text: str) -> None:
        """Put the file there for others, as far as that is possible."""
        threading.Thread(target=self._leave, args=(text,), daemon=True, name="stop file").start()

    def _watch(self) -> None:
        for count in itertools.count(1):
            time.sleep(LOOK_SECONDS)
            self._look(count % LISTING_EVERY == 0)
            if self.seen:
                return

    def _look(self, listing: bool) -> None:
        with suppress(OSError):  # a mount in trouble has not asked for a stop
            if os.path.lexists(self._path) or (listing and self._path in self._path.parent.iterdir()):
                self.seen = self._read() or "there"

    def _read(self) -> str:
        try:
            with self._path.open("rb") as file:
                return file.read(64).decode("ascii", "replace").strip()
        except OSError:
            return ""

    def _leave(self, text: str) -> None:
        temporary = self._path.with_name(f"{self._path.name}.{os.getpid()}")
        with suppress(OSError):
            temporary.write_text(text, encoding="ascii")
            temporary.replace(self._path)  # nobody finds it empty
