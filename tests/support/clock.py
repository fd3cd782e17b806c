"""A clock that passes at once when a client sleeps, and when a test asks for it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest

PACE = 10
"""Seconds that pass in a sleep of one second: a busy machine wakes a sleeper late."""


class Clock:
    """The time of this process. Threads of imitated services sleep as always."""

    def __init__(self) -> None:
        self._real_sleep = time.sleep
        self._passed = 0.0
        self._lock = threading.Lock()
        self.on_sleep: Callable[[], None] = lambda: None
        """Called by a client that sleeps: what happens meanwhile."""

    def install(self, patch: pytest.MonkeyPatch) -> None:
        """Let `time` follow this clock until the patches are undone."""
        real_time = time.time
        real_monotonic = time.monotonic
        patch.setattr(time, "time", lambda: real_time() + self._passed)
        patch.setattr(time, "monotonic", lambda: real_monotonic() + self._passed)
        patch.setattr(time, "sleep", self._sleep)

    def set_back(self) -> None:
        """Show the real time again."""
        with self._lock:
            self._passed = 0.0

    def advance(self, seconds: float) -> None:
        """Let this time pass."""
        with self._lock:
            self._passed += seconds

    def pause(self) -> None:
        """Give other threads a moment of real time."""
        self._real_sleep(0.002)

    def _sleep(self, seconds: float) -> None:
        thread = threading.current_thread()
        is_client = thread is threading.main_thread() or thread.name.startswith("ThreadPool")
        if not is_client:
            self._real_sleep(seconds)
            return
        self.advance(PACE * seconds)
        if thread is threading.main_thread():
            self.on_sleep()
