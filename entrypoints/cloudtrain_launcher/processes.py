"""What processes use, from /proc: CPU time and memory of each rank with its children; and whether memory was short.

Standard library only.
"""

from __future__ import annotations

import os
import time
from typing import Callable, Iterable, NamedTuple, Optional

_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


class ProcessUse(NamedTuple):
    """What one process has used so far, or several together."""

    cpu_seconds: float
    memory_bytes: int
    """Resident; what processes share is counted for each."""


def use_by_root(roots: Iterable[int]) -> dict[int, ProcessUse]:
    """What each of these processes uses together with its descendants; without those that are gone."""
    found = {}
    for pid in _processes():
        stat = _read_stat(pid)
        if stat is not None:
            found[pid] = stat
    children: dict[int, list[int]] = {}
    for pid, (parent, _) in found.items():
        children.setdefault(parent, []).append(pid)
    return {root: _sum(root, found, children) for root in roots if root in found}


def is_alive(pid: int) -> bool:
    """Whether a process exists and has not ended; False where there is no /proc."""
    return process_state(pid) not in ("", "Z", "X")


def process_state(pid: int) -> str:
    """What the kernel says that a process does, a letter of proc(5): `T` stopped, `D` in a call that cannot be
    interrupted; empty where it is gone, or there is no /proc.
    """
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            text = file.read()
    except OSError:
        return ""
    return text[text.rindex(b")") + 2 :][:1].decode("ascii")


def _sum(root: int, found: dict[int, tuple[int, ProcessUse]], children: dict[int, list[int]]) -> ProcessUse:
    cpu, memory, waiting = 0.0, 0, [root]
    while waiting:
        pid = waiting.pop()
        use = found[pid][1]
        cpu, memory = cpu + use.cpu_seconds, memory + use.memory_bytes
        waiting += children.get(pid, ())
    return ProcessUse(cpu, memory)


def _processes() -> list[int]:
    try:
        return [int(name) for name in os.listdir("/proc") if name.isdecimal()]  # noqa: PTH208  (a tenth of the time)
    except OSError:  # not Linux
        return []


def _read_stat(pid: int) -> Optional[tuple[int, ProcessUse]]:
    """The parent of a process, and what it uses, by proc(5); CPU time includes that of children that have ended."""
    try:
        file = os.open(f"/proc/{pid}/stat", os.O_RDONLY)
    except OSError:
        return None
    try:
        text = os.read(file, 1024)
        values = text[text.rindex(b")") + 2 :].split()  # the name before it may hold anything
        cpu = sum(map(int, values[11:15])) / _TICKS_PER_SECOND
        return int(values[1]), ProcessUse(cpu, int(values[21]) * _PAGE_BYTES)
    except (OSError, ValueError, IndexError):
        return None
    finally:
        os.close(file)


def machine_memory() -> Optional[tuple[int, int]]:
    """Bytes of memory in use and in all: of the container if it has a limit, else of the machine. None if unknown."""
    return _container_memory() or _system_memory()


def _container_memory() -> Optional[tuple[int, int]]:
    folder = "/sys/fs/cgroup"
    limit, used = _read_text(f"{folder}/memory.max"), _read_text(f"{folder}/memory.current")
    if not (limit or "").strip().isdecimal() or not used:
        return None
    statistics = (line.split() for line in (_read_text(f"{folder}/memory.stat") or "").splitlines())
    cached = next((int(words[1]) for words in statistics if words[:1] == ["inactive_file"]), 0)
    return max(0, int(used) - cached), int(limit or 0)


def _system_memory() -> Optional[tuple[int, int]]:
    lines = (line.split() for line in (_read_text("/proc/meminfo") or "").splitlines())
    sizes = {words[0]: int(words[1]) * 1024 for words in lines if len(words) > 1}
    if "MemTotal:" not in sizes or "MemAvailable:" not in sizes:
        return None
    return sizes["MemTotal:"] - sizes["MemAvailable:"], sizes["MemTotal:"]


class OutOfMemoryKills:
    """Whether the kernel has killed processes for want of memory in the last minute or two.

    In a container those of the container count, else those of the machine. `count`: how many there were so far.
    """

    WINDOW_SECONDS = 60.0

    def __init__(self, count: Optional[Callable[[], int]] = None, clock: Callable[[], float] = time.monotonic) -> None:
        self._count, self._clock = count or _out_of_memory_kills, clock
        self._before = self._latest = self._count()
        self._since = clock()

    def refresh(self) -> None:
        """Forget what was counted more than two minutes ago. Costs nothing if called more often than each minute."""
        now = self._clock()
        if now - self._since >= self.WINDOW_SECONDS:
            self._before, self._latest, self._since = self._latest, self._count(), now

    def any(self) -> bool:
        """Whether there was one."""
        return self._count() > self._before


def _out_of_memory_kills() -> int:
    """How many there were since the container or the machine was started; 0 if unknown (Linux 4.13 and later)."""
    text = _read_text("/sys/fs/cgroup/memory.events") or _read_text("/proc/vmstat") or ""
    lines = (line.split() for line in text.splitlines())
    return next((int(words[1]) for words in lines if words[:1] == ["oom_kill"]), 0)


def _read_text(path: str) -> Optional[str]:
    try:
        with open(path, encoding="ascii") as file:
            return file.read()
    except (OSError, ValueError):
        return None
