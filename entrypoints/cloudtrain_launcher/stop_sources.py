"""Sources of a stop: Azure's Scheduled Events, and files on a mount. Standard library only.

See "Azure Metadata Service: Scheduled Events for Linux VMs" in Microsoft's documentation: the
service has one address on every Azure machine, which is never routed; requests need a header and
must bypass proxies; the first answer switches the service on and may take two minutes; a preemption
is announced at least 30 seconds ahead; all machines of a scale set receive each other's events.
"""

from __future__ import annotations

import itertools
import json
import os
import threading
import time
import urllib.request
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

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
            return (
                f"{event['EventType']}, not before {when}" if when else f"{event['EventType']}, now"
            )
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
