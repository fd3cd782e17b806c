"""Whether this node must stop: SIGTERM, a stop file, the time limit, a preemption, or the end of a
sweep's trial.

Standard library only.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable

from cloudtrain_launcher.stop_sources import ScheduledEvents, StopFile

TIME_LIMIT = "time"
"""Content of a stop file that a node has written for its peers because the time limit is near."""

PREEMPTED_SUFFIX = "-preempted"
"""Added to the stop file's name: the file by which a node that is preempted notifies its peers."""

PREEMPTION_WAIT_SECONDS = 300.0
"""How long a launcher waits for its announced preemption, once everything is saved."""

REQUESTED_REASONS = ("stop_file", "time")
"""Reasons that ask the job itself to stop. All others come from the platform, which means to start
the job again.
"""

TRIAL_REASONS = ("pruned", "paused", "measured")
"""Reasons why a trial of a sweep ends itself. It has succeeded then."""


class StopRequest:
    """A request to stop, made once and never withdrawn; the first reason counts.

    `file`: a path whose appearance requests a stop; empty: none. `after_seconds`: when to stop
    before a time limit that the platform enforces without a signal, counted from now; 0: never.
    `events_url`: where Azure announces preemptions; empty: nowhere.
    """

    def __init__(
        self, file: str, after_seconds: int, log: Callable[[str], None], events_url: str = ""
    ) -> None:
        self.reason = ""
        """sigterm, stop_file, time, preempted, peer_preempted, pruned, paused or measured; empty:
        none is requested.
        """
        self.sigterm_received = False
        """Whether SIGTERM or SIGINT has arrived, be it the reason or not."""
        self.requested_monotonic = 0.0
        """When the stop was requested, by `time.monotonic()`."""
        self.requested_at = 0.0
        """When it was requested, as a Unix timestamp."""
        self._first_node: tuple[str, float] | None = None
        self._log = log
        self._file = StopFile(file) if file else None
        self._peers = StopFile(file + PREEMPTED_SUFFIX) if file else None
        self._scheduled_events = ScheduledEvents(events_url)
        self._peers_notified = False
        self._deadline = time.monotonic() + after_seconds if after_seconds > 0 else float("inf")

    def listen(self) -> None:
        """Install the signal handlers and start polling; a stop file that is there already counts
        at once.

        Must be called from the main thread.
        """
        signal.signal(signal.SIGTERM, lambda *_: self._on_signal())
        signal.signal(signal.SIGINT, lambda *_: self._on_signal())  # Ctrl-C at `docker run -it`
        if self._file and self._peers:
            self._file.check()
            self._file.watch()
            # left by an earlier attempt at this job, which has been restarted since
            self._peers.ignore_existing()
            self._peers.watch()
        self._scheduled_events.watch()

    def is_requested(self) -> bool:
        """Whether the node must stop. Only for the main thread, since it writes the log."""
        if self.reason == "sigterm" or (not self.reason and self._scheduled_events.event):
            self._preempted()
        if not self.reason and self._first_node:
            self.end_trial(*self._first_node)
        elif not self.reason and self._file and self._file.content:
            if self._file.content == TIME_LIMIT:
                self._time_limit_near()
            else:
                self._request("stop_file")
                self._log("a stop was requested: stopping with a checkpoint")
        elif not self.reason and self._peers and self._peers.content:
            self._request("peer_preempted")
            self._log(
                "another node of this job is about to be preempted: stopping with a checkpoint"
            )
        elif not self.reason and time.monotonic() >= self._deadline:
            self._time_limit_near()
            if (
                self._file
            ):  # peers started at other times: they must not take this node's stop for a failure
                self._file.write(TIME_LIMIT)
        return bool(self.reason)

    def recheck(self) -> bool:
        """`is_requested` after another look at the files: the peers may have seen them before this
        node did.
        """
        for file in (self._file, self._peers) if not self.reason else ():
            if file and not file.content:
                file.check()
        return self.is_requested()

    def end_trial(self, outcome: str, when: float | None = None) -> None:
        """The job is a trial of a sweep and ends: `pruned`, `paused` or `measured`. `when`: by
        default now.
        """
        if not self.reason:
            self._request(outcome)
            self.requested_at = when or self.requested_at
            self._log(
                f"this trial is {outcome}: stopping"
                + " with a checkpoint" * (outcome != "measured")
            )

    def on_first_node(self, outcome: str, when: float) -> None:
        """The first node has ended the trial, at a Unix timestamp. May be called by any thread."""
        self._first_node = outcome, when

    def wait_for_preemption(self) -> None:
        """After an announced preemption, wait until the platform ends this node, at most
        `PREEMPTION_WAIT_SECONDS`.

        A node that exits by itself has failed, and its job is not started again.
        """
        while self.reason in ("preempted", "peer_preempted") and not self.sigterm_received:
            if time.monotonic() > self.requested_monotonic + PREEMPTION_WAIT_SECONDS:
                break
            time.sleep(0.1)

    def _on_signal(self) -> None:
        self.sigterm_received = True
        self._request("sigterm")

    def _preempted(self) -> None:
        """The platform ends this node. Its peers cannot go on without it, so they must save as
        well.
        """
        if not self.reason:
            self._request("preempted")
            self._log(
                f"Azure is about to end this machine ({self._scheduled_events.event}): stopping"
                " with a checkpoint"
            )
        if self._peers and not self._peers_notified:
            self._peers_notified = True
            self._peers.write(f"{os.uname().nodename} {time.time():.3f}")

    def _time_limit_near(self) -> None:
        self._request("time")
        self._log("the time limit is near: stopping with a checkpoint")

    def _request(self, reason: str) -> None:
        if not self.reason:
            self.requested_monotonic = time.monotonic()
            self.requested_at = time.time()
            self.reason = reason
