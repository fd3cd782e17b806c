"""Whether this node is to stop: told by SIGTERM, by a file that appears, by the clock, or as its machine is taken away.

Standard library only.
"""

from __future__ import annotations

import os
import signal
import time
from typing import Callable

from cloudtrain_launcher.stop_sources import ScheduledEvents, StopFile

TIME_LIMIT = "time"
"""What the file says when a node has left it for its peers, because the time is nearly over."""


PREEMPTED_SUFFIX = "-preempted"
"""Added to the stop file's name: the file by which a node whose machine is taken away tells its peers."""

PREEMPTION_WAIT_SECONDS = 300.0
"""How long a machine that is announced to be taken away is waited for, once all is saved."""

REQUESTED_REASONS = ("stop_file", "time")
"""Stops that the job itself was asked for. All others come from the platform, which means to start the job again."""


class StopRequest:
    """A stop, asked for once and never taken back: `why` says by whom.

    `file`: its appearance asks for a stop; empty: there is none. `after_seconds`: when to stop by oneself, counted
    from now, because the platform would end the job shortly after without a word; 0: never. `events`: where Azure
    announces that it takes this machine away; empty: nowhere.
    """

    def __init__(self, file: str, after_seconds: int, log: Callable[[str], None], events_url: str = "") -> None:
        self.why = ""
        """sigterm, stop_file, time, preempted or peer_preempted; empty while there is no stop."""
        self.sigterm_received = False
        """Whether SIGTERM has come, be it the reason or not."""
        self.requested_monotonic = 0.0
        """By the monotonic clock."""
        self.time = 0.0
        """By the wall clock."""
        self._log = log
        self._file = StopFile(file) if file else None
        self._peers = StopFile(file + PREEMPTED_SUFFIX) if file else None
        self._scheduled_events, self._peers_notified = ScheduledEvents(events_url), False
        self._deadline = time.monotonic() + after_seconds if after_seconds > 0 else float("inf")

    def listen(self) -> None:
        """From now on be asked. A file that is there already counts at once."""
        signal.signal(signal.SIGTERM, lambda *_: self._on_signal())
        signal.signal(signal.SIGINT, lambda *_: self._on_signal())  # Ctrl-C at `docker run -it`
        if self._file and self._peers:
            self._file.check()
            self._file.watch()
            self._peers.ignore_existing()  # of an earlier attempt at this job, which has begun anew since
            self._peers.watch()
        self._scheduled_events.watch()

    def is_requested(self) -> bool:
        """Whether there is a stop; for the main thread only, which writes the log."""
        if self.why == "sigterm" or (not self.why and self._scheduled_events.seen):
            self._preempted()
        if not self.why and self._file and self._file.seen:
            if self._file.seen == TIME_LIMIT:
                self._time_limit_reached()
            else:
                self._request("stop_file")
                self._log("a stop was asked for: stopping with a checkpoint")
        elif not self.why and self._peers and self._peers.seen:
            self._request("peer_preempted")
            self._log("another node of this job is about to be taken away: stopping with a checkpoint")
        elif not self.why and time.monotonic() >= self._deadline:
            self._time_limit_reached()
            if self._file:  # peers began at another time: none of them is to take this stop for a failure
                self._file.write(TIME_LIMIT)
        return bool(self.why)

    def recheck(self) -> bool:
        """Look once more: the peers may have seen the file before we did."""
        for file in (self._file, self._peers) if not self.why else ():
            if file and not file.seen:
                file.check()
        return self.is_requested()

    def wait_for_preemption(self) -> None:
        """Leave the end to a platform that has announced it: who leaves first has failed, and is not started again.

        Should nothing come of it, this ends too.
        """
        while self.why in ("preempted", "peer_preempted") and not self.sigterm_received:
            if time.monotonic() > self.requested_monotonic + PREEMPTION_WAIT_SECONDS:
                break
            time.sleep(0.1)

    def _on_signal(self) -> None:
        """In the signal's handler."""
        self.sigterm_received = True
        self._request("sigterm")

    def _preempted(self) -> None:
        """The platform ends this node. Its peers cannot go on without it: they are to save as well."""
        if not self.why:
            self._request("preempted")
            self._log(f"Azure takes this machine away ({self._scheduled_events.seen}): stopping with a checkpoint")
        if self._peers and not self._peers_notified:
            self._peers_notified = True
            self._peers.write(f"{os.uname().nodename} {time.time():.3f}")

    def _time_limit_reached(self) -> None:
        self._request("time")
        self._log("the time limit is near: stopping with a checkpoint")

    def _request(self, why: str) -> None:
        if not self.why:
            self.requested_monotonic, self.time, self.why = time.monotonic(), time.time(), why
