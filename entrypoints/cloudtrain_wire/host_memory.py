"""Memory of this machine or container. Standard library only."""

from __future__ import annotations

import time
from collections.abc import Callable


def machine_memory() -> tuple[int, int] | None:
    """Return used and total bytes of the container's or machine's memory; None if unknown."""
    return _container_memory() or _system_memory()


def _container_memory() -> tuple[int, int] | None:
    folder = "/sys/fs/cgroup"
    limit = read_ascii(f"{folder}/memory.max")
    used = read_ascii(f"{folder}/memory.current")
    if not (limit or "").strip().isdecimal() or not used:
        return None

    cached = _count(read_ascii(f"{folder}/memory.stat") or "", "inactive_file")
    return max(0, int(used) - cached), int(limit or 0)


def _system_memory() -> tuple[int, int] | None:
    text = read_ascii("/proc/meminfo") or ""
    total = 1024 * _count(text, "MemTotal:")
    available = _count(text, "MemAvailable:", -1)
    if not total or available < 0:
        return None

    return total - 1024 * available, total


def _count(text: str, name: str, default: int = 0) -> int:
    """Return the number after a name at the start of a line; else the default."""
    for line in text.splitlines():
        words = line.split()
        if words[:1] == [name]:
            return int(words[1])

    return default


class OutOfMemoryKills:
    """Detector of processes killed by the kernel for lack of memory in the last minutes.

    It counts the container's processes if there is one, else the machine's. `count`: the total so
    far.
    """

    WINDOW_SECONDS = 60.0

    def __init__(
        self, count: Callable[[], int] | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._count = count or _out_of_memory_kills
        self._clock = clock
        self._before = self._latest = self._count()
        self._since = clock()

    def refresh(self) -> None:
        """Forget kills older than two minutes. It is free if called more often than each minute."""
        time_now = self._clock()
        if time_now - self._since >= self.WINDOW_SECONDS:
            self._before, self._latest, self._since = self._latest, self._count(), time_now

    def any(self) -> bool:
        """Return whether there was one."""
        return self._count() > self._before


def _out_of_memory_kills() -> int:
    """Return the number of kills since the container's or machine's start; 0 if unknown.

    Requires Linux 4.13.
    """
    text = read_ascii("/sys/fs/cgroup/memory.events") or read_ascii("/proc/vmstat") or ""
    return _count(text, "oom_kill")


def read_ascii(path: str) -> str | None:
    try:
        with open(path, encoding="ascii", errors="replace") as file:
            return file.read()
    except OSError:
        return None
