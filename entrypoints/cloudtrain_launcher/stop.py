"""Whether this node is to stop: told by SIGTERM, by a file that appears, by the clock, or as its machine is taken away.

Standard library only.
"""

from __future__ import annotations

import itertools
import os
import signal
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Callable

from cloudtrain_launcher.preemption import Announcements

LOOK_SECONDS = 1.0
LISTING_EVERY = 10
"""Looks, of which one also reads the folder: a mount may remember for long that a file was not there."""

PATIENCE_SECONDS = 5.0
"""How long a mount may take to answer where somebody waits for it."""

BY_TIME = "time"
"""What the file says when a node has left it for its peers, because the time is nearly over."""


PREEMPTED = "-preempted"
"""Added to the stop file's name: the file by which a node whose machine is taken away tells its peers."""

ANNOUNCED_SECONDS = 300.0
"""How long a machine that is announced to be taken away is waited for, once all is saved."""

ASKED = ("stop_file", "time")
"""Stops that the job itself was asked for. All others come from the platform, which means to start the job again."""


class StopRequest:
    """A stop, asked for once and never taken back: `why` says by whom.

    `file`: its appearance asks for a stop; empty: there is none. `after_seconds`: when to stop by oneself, counted
    from now, because the platform would end the job shortly after without a word; 0: never. `events`: where Azure
    announces that it takes this machine away; empty: nowhere.
    """

    def __init__(self, file: str, after_seconds: int, log: Callable[[str], None], events: str = "") -> None:
        self.why = ""
        """sigterm, stop_file, time, preempted or peer_preempted; empty while there is no stop."""
        self.killed = False
        """Whether SIGTERM has come, be it the reason or not."""
        self.since = 0.0
        """By the monotonic clock."""
        self.time = 0.0
        """By the wall clock."""
        self._log = log
        self._file = StopFile(file) if file else None
        self._peers = StopFile(file + PREEMPTED) if file else None
        self._machine, self._told_peers = Announcements(events), False
        self._deadline = time.monotonic() + after_seconds if after_seconds > 0 else float("inf")

    def listen(self) -> None:
        """From now on be asked. A file that is there already counts at once."""
        signal.signal(signal.SIGTERM, lambda *_: self._terminated())
        signal.signal(signal.SIGINT, lambda *_: self._terminated())  # Ctrl-C at `docker run -it`
        if self._file and self._peers:
            self._file.look()
            self._file.watch()
            self._peers.pass_over()  # of an earlier attempt at this job, which has begun anew since
            self._peers.watch()
        self._machine.watch()

    def asked(self) -> bool:
        """Whether there is a stop; for the main thread only, which writes the log."""
        if self.why == "sigterm" or (not self.why and self._machine.seen):
            self._taken_away()
        if not self.why and self._file and self._file.seen:
            if self._file.seen == BY_TIME:
                self._near_the_limit()
            else:
                self._ask("stop_file")
                self._log("a stop was asked for: stopping with a checkpoint")
        elif not self.why and self._peers and self._peers.seen:
            self._ask("peer_preempted")
            self._log("another node of this job is about to be taken away: stopping with a checkpoint")
        elif not self.why and time.monotonic() >= self._deadline:
            self._near_the_limit()
            if self._file:  # peers began at another time: none of them is to take this stop for a failure
                self._file.leave(BY_TIME)
        return bool(self.why)

    def asked_after_all(self) -> bool:
        """Look once more: the peers may have seen the file before we did."""
        for file in (self._file, self._peers) if not self.why else ():
            if file and not file.seen:
                file.look()
        return self.asked()

    def await_the_end(self) -> None:
        """Leave the end to a platform that has announced it: who leaves first has failed, and is not started again.

        Should nothing come of it, this ends too.
        """
        while self.why in ("preempted", "peer_preempted") and not self.killed:
            if time.monotonic() > self.since + ANNOUNCED_SECONDS:
                break
            time.sleep(0.1)

    def _terminated(self) -> None:
        """In the signal's handler."""
        self.killed = True
        self._ask("sigterm")

    def _taken_away(self) -> None:
        """The platform ends this node. Its peers cannot go on without it: they are to save as well."""
        if not self.why:
            self._ask("preempted")
            self._log(f"Azure takes this machine away ({self._machine.seen}): stopping with a checkpoint")
        if self._peers and not self._told_peers:
            self._told_peers = True
            self._peers.leave(f"{os.uname().nodename} {time.time():.3f}")

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
        self._path, self._old = Path(path), ""
        self.seen = ""
        """What the file says, or that it is there; empty until it is."""

    def look(self) -> None:
        """Look now; a mount that does not answer in time has said no."""
        thread = threading.Thread(target=self._look, args=(True,), daemon=True, name="stop file")
        thread.start()
        thread.join(PATIENCE_SECONDS)

    def pass_over(self) -> None:
        """Look now: what the file says already counts no more, only what it will say."""
        self.look()
        self._old, self.seen = self.seen, ""

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
                found = self._read() or "there"
                self.seen = found if found != self._old else ""

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
