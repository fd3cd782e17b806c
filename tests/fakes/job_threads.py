"""The threads of an imitated cloud's jobs, one each."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Protocol


class Wakeable(Protocol):
    """A job that waits for this between its phases."""

    name: str
    woken: threading.Event


class JobThreads:
    """`closing`: what every job looks at when it is woken; once it is set, it ends by force."""

    def __init__(self, closing: threading.Event) -> None:
        self._closing = closing
        self._lock = threading.Lock()
        self._started: list[tuple[Wakeable, threading.Thread]] = []

    def start(self, job: Wakeable, live: Callable[[], None]) -> None:
        """Begin the life of a job."""
        thread = threading.Thread(target=live, name=f"loopback-{job.name}", daemon=True)
        with self._lock:
            self._started.append((job, thread))
            thread.start()

    def close(self) -> None:
        """End all jobs by force, and wait until each has ended."""
        self._closing.set()
        with self._lock:
            started = list(self._started)
        for job, _ in started:
            job.woken.set()
        for _, thread in started:
            thread.join()
