"""What processes use and do, from /proc: CPU time, memory, wakeups and reads of ranks; and whether
memory was short.

Standard library only.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import NamedTuple

_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


class ProcessUse(NamedTuple):
    """What one process has used so far, or several together."""

    cpu_seconds: float
    memory_bytes: int
    """Resident; what processes share is counted for each."""


class ProcessMoves(NamedTuple):
    """Counters of a process that stand still while it waits."""

    wakeups: int
    """How often the main thread has gone to sleep by itself (voluntary context switches)."""
    bytes_read: int
    """From files and pipes; what arrives by recv(2) does not count."""


class ProcessTree:
    """All processes of the machine at one moment, and which of them started which."""

    def __init__(self) -> None:
        self._stats: dict[int, tuple[int, ProcessUse]] = {}
        self._children: dict[int, list[int]] = {}
        for pid in _processes():
            stat = _read_stat(pid)
            if stat is not None:
                self._stats[pid] = stat
                self._children.setdefault(stat[0], []).append(pid)

    def use(self, root: int) -> ProcessUse | None:
        """Return what a process uses together with its descendants; None if it is gone."""
        if root not in self._stats:
            return None

        cpu_seconds = 0.0
        memory_bytes = 0
        for pid in [root, *self.descendants(root)]:
            use = self._stats[pid][1]
            cpu_seconds += use.cpu_seconds
            memory_bytes += use.memory_bytes
        return ProcessUse(cpu_seconds, memory_bytes)

    def descendants(self, root: int) -> list[int]:
        """Return the processes that a process has started, and that those have started."""
        descendants: list[int] = []
        parents = [root]
        while parents:
            children = self._children.get(parents.pop(), [])
            descendants += children
            parents += children
        return descendants


def use_by_root(roots: Iterable[int]) -> dict[int, ProcessUse]:
    """Return what each of these processes uses together with its descendants; without those that
    are gone.
    """
    tree = ProcessTree()
    uses = {root: tree.use(root) for root in roots}
    return {root: use for root, use in uses.items() if use is not None}


def process_moves(pid: int, *, threads: bool = False) -> ProcessMoves | None:
    """Return the counters of a process; None if it is gone. `threads`: count what its other threads
    read, too.
    """
    tasks = f"/proc/{pid}/task"
    wakeups = _read_count(f"{tasks}/{pid}/status", "voluntary_ctxt_switches:")
    if wakeups is None:
        return None

    readers = [str(pid)]
    if threads:
        with suppress(OSError):
            readers = os.listdir(tasks)  # noqa: PTH208  (a tenth of the time)
    # Not all kernels count what is read, and not all let others see it.
    counts = (_read_count(f"{tasks}/{reader}/io", "rchar:") for reader in readers)
    return ProcessMoves(wakeups, sum(count or 0 for count in counts))


def _read_count(path: str, name: str) -> int | None:
    """Return the number after `name` in a file of /proc; None if it is not there."""
    for line in (_read_text(path) or "").splitlines():
        if line.startswith(name):
            return int(line[len(name) :])
    return None


def is_alive(pid: int) -> bool:
    """Whether a process exists and has not ended; False where there is no /proc."""
    return process_state(pid) not in ("", "Z", "X")


def process_state(pid: int) -> str:
    """What the kernel says that a process does, a letter of proc(5): `T` stopped, `D` in a call
    that cannot be interrupted; empty where it is gone, or there is no /proc.
    """
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            text = file.read()
    except OSError:
        return ""
    return text[text.rindex(b")") + 2 :][:1].decode("ascii")


def _processes() -> list[int]:
    try:
        return [int(name) for name in os.listdir("/proc") if name.isdecimal()]  # noqa: PTH208  (a tenth of the time)
    except OSError:  # not Linux
        return []


def _read_stat(pid: int) -> tuple[int, ProcessUse] | None:
    """The parent of a process, and what it uses, by proc(5); CPU time includes that of children
    that have ended.
    """
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


def machine_memory() -> tuple[int, int] | None:
    """Bytes of memory in use and in all: of the container if it has a limit, else of the machine.
    None if unknown.
    """
    return _container_memory() or _system_memory()


def _container_memory() -> tuple[int, int] | None:
    folder = "/sys/fs/cgroup"
    limit = _read_text(f"{folder}/memory.max")
    used = _read_text(f"{folder}/memory.current")
    if not (limit or "").strip().isdecimal() or not used:
        return None
    statistics = (line.split() for line in (_read_text(f"{folder}/memory.stat") or "").splitlines())
    cached = next((int(words[1]) for words in statistics if words[:1] == ["inactive_file"]), 0)
    return max(0, int(used) - cached), int(limit or 0)


def _system_memory() -> tuple[int, int] | None:
    lines = (line.split() for line in (_read_text("/proc/meminfo") or "").splitlines())
    sizes = {words[0]: int(words[1]) * 1024 for words in lines if len(words) > 1}
    if "MemTotal:" not in sizes or "MemAvailable:" not in sizes:
        return None
    return sizes["MemTotal:"] - sizes["MemAvailable:"], sizes["MemTotal:"]


class OutOfMemoryKills:
    """Whether the kernel has killed processes for want of memory in the last minute or two.

    In a container those of the container count, else those of the machine. `count`: how many there
    were so far.
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
        """Forget what was counted more than two minutes ago. Costs nothing if called more often
        than each minute.
        """
        now = self._clock()
        if now - self._since >= self.WINDOW_SECONDS:
            self._before, self._latest, self._since = self._latest, self._count(), now

    def any(self) -> bool:
        """Whether there was one."""
        return self._count() > self._before


def _out_of_memory_kills() -> int:
    """How many there were since the container or the machine was started; 0 if unknown (Linux 4.13
    and later).
    """
    text = _read_text("/sys/fs/cgroup/memory.events") or _read_text("/proc/vmstat") or ""
    lines = (line.split() for line in text.splitlines())
    return next((int(words[1]) for words in lines if words[:1] == ["oom_kill"]), 0)


def _read_text(path: str) -> str | None:
    try:
        with open(path, encoding="ascii") as file:
            return file.read()
    except (OSError, ValueError):
        return None
