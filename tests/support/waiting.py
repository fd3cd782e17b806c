"""Waits of tests: a time limit, and a condition that is polled until it holds."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

# Time limit of a wait in a test.

HANG_SECONDS = 300
"""How long a test waits for one thing before it calls it a hang. Below the limit of a whole test."""


# Waiting for something that a job does: a condition is polled until it holds.

T = TypeVar("T")


def eventually(condition: Callable[[], T], seconds: float = HANG_SECONDS) -> T:
    """The first true value that `condition` returns. TimeoutError when there is none within
    `seconds`.
    """
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        if time.monotonic() > deadline:
            raise TimeoutError(f"the condition does not hold after {seconds} s")
        time.sleep(0.02)
    return value


def next_tick(folder: Path) -> None:
    """Wait until a file that changes gets a later time than a change before: kernels note it every
    few milliseconds, and some file systems every second.
    """

    def changed_at() -> int:
        probe = folder / ".tick"
        probe.touch()
        changed = probe.stat().st_mtime_ns
        probe.unlink()
        return changed

    begin = changed_at()
    eventually(lambda: changed_at() > begin)
