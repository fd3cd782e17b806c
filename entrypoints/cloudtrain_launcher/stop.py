"""Stop of this node: SIGTERM, stop file, time limit, preemption or a trial's end.

Standard library only.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable

from cloudtrain_launcher.scheduled_events import ScheduledEvents
from cloudtrain_launcher.stop_file import StopFile

TIME_LIMIT = "time"
"""Content of a stop file that a node writes for its peers near the time limit."""

PREEMPTED_SUFFIX = "-preempted"
"""Suffix of a preempted node's file for its peers."""

PREEMPTION_WAIT_SECONDS = 300.0
"""Maximum wait for an announced preemption after saving."""

REQUESTED_REASONS = ("stop_file", "time")
"""Reasons that request a stop of the job. After others the platform restarts the job."""

TRIAL_REASONS = ("pruned", "paused")
"""Reasons of a successful end of a trial."""


class StopRequest:
    """A request to stop, made once and never withdrawn; the first reason counts.

    `file`: a path whose appearance requests a stop; empty: none. `after_seconds`: time from now
    until a stop, for platforms that enforce a time limit without a signal; 0: never. `events_url`:
    where Azure announces preemptions; empty: none.
    """

    def __init__(
        self, file: str, after_seconds: int, log: Callable[[str], None], events_url: str = ""
    ) -> None:
        self.reason = ""
        """Empty, sigterm, stop_file, time, preempted, peer_preempted, pruned or paused."""
        self.sigterm_received = False
        """True if SIGTERM or SIGINT has arrived, whatever the reason."""
        self.requested_monotonic = 0.0
        """The time of the request, by `time.monotonic()`."""
        self.requested_at = 0.0
        """The time of the request, as a Unix timestamp."""
        self._first_node: tuple[str, float] | None = None
        self._log = log
        self._file = StopFile(file) if file else None
        self._peers = StopFile(file + PREEMPTED_SUFFIX) if file else None
        self._scheduled_events = ScheduledEvents(events_url)
        self._peers_notified = False
        if after_seconds > 0:
            self._deadline = time.monotonic() + after_seconds
        else:
            self._deadline = float("inf")

    def listen(self) -> None:
        """Install the signal handlers and start polling; an existing stop file counts at once.

        Call it from the main thread.
        """
        signal.signal(signal.SIGTERM, lambda *_: self._on_signal())
        signal.signal(signal.SIGINT, lambda *_: self._on_signal())  # Ctrl-C at `docker run -it`

        if self._file and self._peers:
            self._file.check()
            self._file.watch()
            # left by an earlier attempt at this job
            self._peers.ignore_existing()
            self._peers.watch()

        self._scheduled_events.watch()

    def is_requested(self) -> bool:
        """Return whether the node must stop. Call it from the main thread: it writes the log."""
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
            if self._file:  # peers with other start times must not take this stop for a failure
                self._file.write(TIME_LIMIT)

        return bool(self.reason)

    def recheck(self) -> bool:
        """Read the files again, which peers may have seen earlier; return whether to stop."""
        if not self.reason:
            for file in (self._file, self._peers):
                if file and not file.content:
                    file.check()

        return self.is_requested()

    def end_trial(self, outcome: str, when: float | None = None) -> None:
        """End the job's trial: `pruned` or `paused`. `when`: by default now."""
        if not self.reason:
            self._request(outcome)
            self.requested_at = when or self.requested_at
            self._log(f"this trial is {outcome}: stopping with a checkpoint")

    def on_first_node(self, outcome: str, when: float) -> None:
        """End the trial as the first node did, at a Unix timestamp. Call it from any thread."""
        self._first_node = outcome, when

    def wait_for_preemption(self) -> None:
        """Wait for the end of this node after a preemption, up to `PREEMPTION_WAIT_SECONDS`.

        A node that exits by itself has failed, and the platform does not restart its job.
        """
        while self.reason in ("preempted", "peer_preempted") and not self.sigterm_received:
            if time.monotonic() > self.requested_monotonic + PREEMPTION_WAIT_SECONDS:
                break

            time.sleep(0.1)

    def _on_signal(self) -> None:
        self.sigterm_received = True
        self._request("sigterm")

    def _preempted(self) -> None:
        """Stop because the platform ends this node; notify the peers, which must save as well."""
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
