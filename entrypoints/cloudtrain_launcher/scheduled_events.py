"""Azure's announcements of a preemption. Standard library only."""

from __future__ import annotations

import json
import threading
import time
import urllib.request
from collections.abc import Mapping
from http.client import HTTPException
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
