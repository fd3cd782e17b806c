"""Stop of this node: SIGTERM, stop file, time limit, preemption or a trial's end.

Standard library only.
"""

from __future__ import annotations

import itertools
import json
import os
import signal
import threading
import time
import urllib.request
from collections.abc import Callable, Mapping
from contextlib import suppress
from http.client import HTTPException
from pathlib import Path
from typing import Any

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
        self._deadline = time.monotonic() + after_seconds if after_seconds > 0 else float("inf")

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
        for file in (self._file, self._peers) if not self.reason else ():
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


METADATA_URL = "http://169.254.169.254"
URL_VARIABLE = "CLOUDTRAIN_SCHEDULED_EVENTS"
"""Variable for another URL; `off` disables polling in a rehearsal."""

EVENTS_PATH = "/metadata/scheduledevents?api-version=2020-07-01"
NAME_PATH = "/metadata/instance/compute/name?api-version=2021-02-01&format=text"

TERMINATING_TYPES = ("Preempt", "Terminate", "Reboot", "Redeploy")
"""Events that no process survives. A `Freeze` takes seconds, and the program continues."""

EVENTS_POLL_SECONDS = 2.0
FIRST_TIMEOUT_SECONDS = 130.0
TIMEOUT_SECONDS = 10.0
MAX_FAILURES = 3
"""Failures before a first answer that end polling: this is not an Azure machine."""

STOP_FILE_POLL_SECONDS = 1.0
LISTING_INTERVAL = 10
"""Polls per listing of the folder: a mount may cache the absence of a file."""
READ_TIMEOUT_SECONDS = 5.0
"""Maximum wait of `StopFile.check` for a mount."""


def scheduled_events_url(environ: Mapping[str, str]) -> str:
    """Return the URL of the Scheduled Events service; empty if polling is off."""
    url = environ.get(URL_VARIABLE) or METADATA_URL
    return "" if url == "off" else url


class ScheduledEvents:
    """Thread that polls Azure's Scheduled Events until one ends this machine. Empty `url`: off."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._answered = False
        self._open = urllib.request.build_opener(urllib.request.ProxyHandler({})).open
        self.event = ""
        """`Preempt, not before Mon, 19 Sep 2016 18:29:47 GMT`; empty without such an event."""

    def watch(self) -> None:
        """Start polling."""
        if self._url:
            threading.Thread(target=self._watch, daemon=True, name="scheduled events").start()

    def _watch(self) -> None:
        name = ""
        failures = 0

        while not self.event and (self._answered or failures < MAX_FAILURES):
            try:
                name = name or self._get(NAME_PATH).decode().strip()
                self.event = terminating_event(json.loads(self._get(EVENTS_PATH)), name)
                self._answered = True
                failures = 0
            except (
                OSError,
                HTTPException,
                ValueError,
                LookupError,
                TypeError,
                AttributeError,
            ):  # no answer, or not from this service
                failures += 1

            time.sleep(EVENTS_POLL_SECONDS)

    def _get(self, path: str) -> bytes:
        request = urllib.request.Request(self._url + path, headers={"Metadata": "true"})
        with self._open(
            request, timeout=TIMEOUT_SECONDS if self._answered else FIRST_TIMEOUT_SECONDS
        ) as response:
            content: bytes = response.read(1 << 20)

        return content


def terminating_event(document: Mapping[str, Any], machine: str) -> str:
    """Return the event that ends this machine, as in `ScheduledEvents.event`; empty without one.

    `document`: the service's JSON answer. Raise LookupError or TypeError if it is invalid.
    """
    for event in document["Events"]:
        if event["EventType"] in TERMINATING_TYPES and machine in event["Resources"]:
            when = event.get("NotBefore")
            if when:
                return f"{event['EventType']}, not before {when}"

            return f"{event['EventType']}, now"

    return ""


class StopFile:
    """A file on a mount, polled in threads, since a mount may hang.

    The file is never removed: a restarted node must stop too.
    """

    def __init__(self, path: str) -> None:
        self._path = Path(path)
        self._ignored = ""
        self.content = ""
        """Return the file's first 64 characters, `there` if it is empty, '' if it is missing."""

    def check(self) -> None:
        """Read the file now; a mount slower than `READ_TIMEOUT_SECONDS` counts as no file."""
        thread = threading.Thread(target=self._check, args=(True,), daemon=True, name="stop file")
        thread.start()
        thread.join(READ_TIMEOUT_SECONDS)

    def ignore_existing(self) -> None:
        """Read the file now, and ignore its present content from here on."""
        self.check()
        self._ignored = self.content
        self.content = ""

    def watch(self) -> None:
        """Start polling, every `STOP_FILE_POLL_SECONDS`."""
        threading.Thread(target=self._watch, daemon=True, name="stop file").start()

    def write(self, text: str) -> None:
        """Create the file for other readers; ignore errors."""
        threading.Thread(target=self._write, args=(text,), daemon=True, name="stop file").start()

    def _watch(self) -> None:
        for count in itertools.count(1):
            time.sleep(STOP_FILE_POLL_SECONDS)
            self._check(count % LISTING_INTERVAL == 0)
            if self.content:
                return

    def _check(self, list_folder: bool) -> None:
        with suppress(OSError):  # a mount's error is not a stop request
            if os.path.lexists(self._path) or (
                list_folder and self._path in self._path.parent.iterdir()
            ):
                content = self._read() or "there"
                self.content = content if content != self._ignored else ""

    def _read(self) -> str:
        try:
            with self._path.open("rb") as file:
                return file.read(64).decode("ascii", "replace").strip()
        except OSError:
            return ""

    def _write(self, text: str) -> None:
        temporary = self._path.with_name(f"{self._path.name}.{os.getpid()}")
        with suppress(OSError):
            temporary.write_text(text, encoding="ascii")
            temporary.replace(self._path)  # atomic, so that no reader sees a partial file
