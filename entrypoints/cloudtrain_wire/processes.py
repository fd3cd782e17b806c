"""Processes of this machine: what they use, and their end. Standard library only."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time
from collections.abc import Iterable
from contextlib import suppress
from typing import NamedTuple

from cloudtrain_wire.host_memory import read_ascii

_PR_SET_CHILD_SUBREAPER = 36

KILL_SECONDS = 2.0
"""Maximum wait for the end of killed processes, which the kernel may delay."""


def adopt_orphans() -> None:
    """Make descendants whose parent ends children of this process (prctl(2)); Linux only.

    Also those in another session, which `kill_descendants` would miss otherwise.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)


class ProcessUse(NamedTuple):
    """Resources that one process or several have used."""

    cpu_seconds: float
    memory_bytes: int
    """Resident memory; shared memory counts for each process."""


class ProcessMoves(NamedTuple):
    """Counters of a process that do not change while it waits."""

    wakeups: int
    """Voluntary context switches of the main thread."""
    bytes_read: int
    """Bytes read from files and pipes, without recv(2)."""


class ProcessTree:
    """All processes of the machine at one moment, with their parents."""

    def __init__(self) -> None:
        self._uses: dict[int, ProcessUse] = {}
        self._children: dict[int, list[int]] = {}

        for pid in _processes():
            stat = _read_stat(pid)
            if stat is not None:
                _, parent, self._uses[pid] = stat
                self._children.setdefault(parent, []).append(pid)

    def use(self, root: int) -> ProcessUse | None:
        """Return the usage of a process and its descendants; None if it has ended."""
        if root not in self._uses:
            return None

        cpu_seconds, memory_bytes = self._uses[root]
        for pid in self.descendants(root):
            use = self._uses[pid]
            cpu_seconds += use.cpu_seconds
            memory_bytes += use.memory_bytes

        return ProcessUse(cpu_seconds, memory_bytes)

    def descendants(self, root: int) -> list[int]:
        """Return the descendants of a process."""
        descendants: list[int] = []
        parents = [root]

        while parents:
            children = self._children.get(parents.pop(), [])
            descendants += children
            parents += children

        return descendants


def kill_descendants() -> None:
    """Kill all descendants of this process; wait up to `KILL_SECONDS` for their end.

    They must not belong to a `subprocess.Popen` that is still in use.
    """
    deadline = time.monotonic() + KILL_SECONDS

    while pids := ProcessTree().descendants(os.getpid()):
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

        with suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass

        if time.monotonic() > deadline:
            break

        time.sleep(0.01)


def use_by_root(roots: Iterable[int]) -> dict[int, ProcessUse]:
    """Return the usage of each process and its descendants, without ended ones."""
    tree = ProcessTree()
    uses = {}
    for root in roots:
        use = tree.use(root)
        if use is not None:
            uses[root] = use

    return uses


def process_moves(pid: int) -> ProcessMoves | None:
    """Return the counters of a process; None if it has ended."""
    tasks = f"/proc/{pid}/task"
    wakeups = read_count(f"{tasks}/{pid}/status", "voluntary_ctxt_switches:")
    if wakeups is None:
        return None

    threads: list[str] = []
    with suppress(OSError):
        threads = os.listdir(tasks)  # noqa: PTH208  (a tenth of the time)

    # Some kernels do not count reads, or hide them from others.
    counts = (read_count(f"{tasks}/{thread}/io", "rchar:") for thread in threads)

    return ProcessMoves(wakeups, sum(count or 0 for count in counts))


def read_count(path: str, name: str, base: int = 10) -> int | None:
    """Return the number after `name` in a file of /proc; None if missing."""
    for line in (read_ascii(path) or "").splitlines():
        if line.startswith(name):
            return int(line[len(name) :], base)

    return None


def process_state(pid: int) -> str:
    """Return the kernel's state of a process, a letter of proc(5); empty if unknown.

    `T`: stopped. `D`: in a call that cannot be interrupted.
    """
    stat = _read_stat(pid)
    if not stat:
        return ""

    return stat[0]


def _processes() -> list[int]:
    try:
        return [int(name) for name in os.listdir("/proc") if name.isdecimal()]  # noqa: PTH208  (a tenth of the time)
    except OSError:  # not Linux
        return []


def _read_stat(pid: int) -> tuple[str, int, ProcessUse] | None:
    """Return a process's state, parent and usage, with the CPU time of its ended children."""
    try:
        file = os.open(f"/proc/{pid}/stat", os.O_RDONLY)
    except OSError:
        return None

    try:
        text = os.read(file, 1024)
        # The name before it may contain any characters.
        values = text[text.rindex(b")") + 2 :].split()
        cpu = sum(map(int, values[11:15])) / os.sysconf("SC_CLK_TCK")
        use = ProcessUse(cpu, int(values[21]) * os.sysconf("SC_PAGE_SIZE"))
        return values[0].decode("ascii"), int(values[1]), use
    except (OSError, ValueError, IndexError):
        return None
    finally:
        os.close(file)


def signal_group(group: int, signum: int) -> bool:
    """Send a signal to a process group, 0 for none; return whether the group has a process.

    Reap its orphans, which this process has adopted.
    """
    with suppress(ChildProcessError):
        while os.waitpid(-group, os.WNOHANG)[0]:
            pass

    try:
        os.killpg(group, signum)
    except OSError:
        return False

    return True
