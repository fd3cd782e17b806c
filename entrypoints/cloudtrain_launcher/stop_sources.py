"""Whether Azure is about to take this very machine away: its Scheduled Events, polled. Standard library only.

After "Azure Metadata Service: Scheduled Events for Linux VMs" in Microsoft's documentation: one address that answers
on every machine of Azure and is never routed, a header that must be there, no proxy; the first answer may take two
minutes, for it switches the service on; a preemption is announced at least 30 seconds ahead; and every machine of a
scale set is told of the events of all of them.
"""

from __future__ import annotations

import itertools
import json
import os
import threading
import time
import urllib.request
from contextlib import suppress
from pathlib import Path
from typing import Any, Mapping

STOP_FILE_POLL_SECONDS = 1.0
LISTING_INTERVAL = 10
"""Looks, of which one also reads the folder: a mount may remember for long that a file was not there."""
READ_TIMEOUT_SECONDS = 5.0
"""How long a mount may take to answer where somebody waits for it."""

METADATA_URL = "http://169.254.169.254"
URL_VARIABLE = "CLOUDTRAIN_SCHEDULED_EVENTS"
"""Another address to ask at; `off`: nobody is asked, where the job only rehearses."""

EVENTS_PATH = "/metadata/scheduledevents?api-version=2020-07-01"
NAME_PATH = "/metadata/instance/compute/name?api-version=2021-02-01&format=text"

TERMINATING_TYPES = ("Preempt", "Terminate", "Reboot", "Redeploy")
"""What no process survives. A `Freeze` is over in seconds, and the program goes on."""

EVENTS_POLL_SECONDS = 2.0
FIRST_TIMEOUT_SECONDS, TIMEOUT_SECONDS = 130.0, 10.0
MAX_FAILURES = 3
"""Failures in a row before the first answer, after which nobody is asked any more: this is no machine of Azure."""


def scheduled_events_url(environ: Mapping[str, str]) -> str:
    """Where to ask; empty: nowhere."""
    given = environ.get(URL_VARIABLE) or METADATA_URL
    return "" if given == "off" else given


class ScheduledEvents:
    """Asks again and again, in a thread of its own, until this machine's end is announced. `url`: empty: never."""

    def __init__(self, url: str) -> None:
        self._url, self._answered = url, False
        self._open = urllib.request.build_opener(urllib.request.ProxyHandler({})).open
        self.seen = ""
        """What is to happen, in words: `Preempt, not before Mon, 19 Sep 2016 18:29:47 GMT`; empty until it is known."""

    def watch(self) -> None:
        """Ask from now on."""
        if self._url:
            threading.Thread(target=self._watch, daemon=True, name="scheduled events").start()

    def _watch(self) -> None:
        name, failures = "", 0
        while not self.seen and (self._answered or failures < MAX_FAILURES):
            try:
                name = name or self._ask(NAME_PATH).decode().strip()
                self.seen = terminating_event(json.loads(self._ask(EVENTS_PATH)), name)
                self._answered, failures = True, 0
            except (OSError, ValueError, TypeError, AttributeError):  # silent, or no answer of this service
                failures += 1
            time.sleep(EVENTS_POLL_SECONDS)

    def _ask(self, path: str) -> bytes:
        request = urllib.request.Request(self._url + path, headers={"Metadata": "true"})
        with self._open(request, timeout=TIMEOUT_SECONDS if self._answered else FIRST_TIMEOUT_SECONDS) as answer:
            content: bytes = answer.read(1 << 20)
        return content


def terminating_event(document: Mapping[str, Any], machine: str) -> str:
    """The event that ends this machine, in words; empty if there is none."""
    for event in document["Events"]:
        if event["EventType"] in TERMINATING_TYPES and machine in event["Resources"]:
            when = event.get("NotBefore")
            return f"{event['EventType']}, not before {when}" if when else f"{event['EventType']}, now"
    return ""


class StopFile:
    """A file on a mount, looked for in threads of its own: a mount that hangs must not hold up what the ranks print.

    It stays where it is: a node that the platform starts anew must stop too.
    """

    def __init__(self, path: str) -> None:
        self._path, self._old = Path(path), ""
        self.seen = ""
        """What the file says, or that it is there; empty until it is."""

    def check(self) -> None:
        """Look now; a mount that does not answer in time has said no."""
        thread = threading.Thread(target=self._check, args=(True,), daemon=True, name="stop file")
        thread.start()
        thread.join(READ_TIMEOUT_SECONDS)

    def ignore_existing(self) -> None:
        """Look now: what the file says already counts no more, only what it will say."""
        self.check()
        self._old, self.seen = self.seen, ""

    def watch(self) -> None:
        """Look every second from now on."""
        threading.Thread(target=self._watch, daemon=True, name="stop file").start()

    def write(self, text: str) -> None:
        """Put the file there for others, as far as that is possible."""
        threading.Thread(target=self._write, args=(text,), daemon=True, name="stop file").start()

    def _watch(self) -> None:
        for count in itertools.count(1):
            time.sleep(STOP_FILE_POLL_SECONDS)
            self._check(count % LISTING_INTERVAL == 0)
            if self.seen:
                return

    def _check(self, listing: bool) -> None:
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

    def _write(self, text: str) -> None:
        temporary = self._path.with_name(f"{self._path.name}.{os.getpid()}")
        with suppress(OSError):
            temporary.write_text(text, encoding="ascii")
            temporary.replace(self._path)  # nobody finds it empty
