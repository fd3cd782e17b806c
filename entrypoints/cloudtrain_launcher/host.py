"""The launcher's machine: CPU cores, GPUs, EFA adapters, ports, processes. Standard library only.

Processes are read in /proc: CPU time, memory, wakeups, reads, descendants.
"""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple


def visible_gpus() -> int:
    """Return the number of GPUs that CUDA sees (`CUDA_VISIBLE_DEVICES`); 0 without a driver."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return 0

    count = ctypes.c_int(0)
    if driver.cuInit(0) != 0 or driver.cuDeviceGetCount(ctypes.byref(count)) != 0:
        return 0

    return count.value


def has_accelerator() -> bool:
    """Return whether the machine has a GPU or accelerator: NVIDIA, AMD, Neuron, Gaudi or TPU."""
    devices = ("kfd", "neuron*", "accel*")
    return visible_gpus() > 0 or any(
        path for pattern in devices for path in Path("/dev").glob(pattern)
    )


def has_efa() -> bool:
    """Return whether the machine has an EFA adapter; without one libfabric fails or hangs."""
    return any(Path("/dev/infiniband").glob("uverbs*"))


def efa_library_dirs(root: str = "/opt/amazon") -> tuple[str, ...]:
    """Return the folders of NCCL's EFA plug-in and its libfabric, from AWS's installer; or ()."""
    folders = [
        *Path(root, "ofi-nccl").rglob("libnccl-net*.so"),
        *Path(root, "efa").rglob("libfabric.so*"),
    ]
    return tuple(dict.fromkeys(str(path.parent) for path in sorted(folders, reverse=True)))


_PR_SET_CHILD_SUBREAPER = 36


def adopt_orphans() -> None:
    """Make descendants whose parent ends children of this process (prctl(2)); Linux only.

    Also those in a session of their own, which `kill_descendants` would miss otherwise.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)


def on_sigterm(act: Callable[[], None]) -> None:
    """Call `act` in a thread at SIGTERM, even while the main thread runs native code.

    Such code runs no signal handler. Call it in the main thread.
    """
    read, write = socket.socketpair()
    write.setblocking(False)

    def watch() -> None:
        while signal.SIGTERM not in read.recv(64):
            pass

        act()

    threading.Thread(target=watch, name="sigterm", daemon=True).start()
    signal.set_wakeup_fd(write.detach(), warn_on_full_buffer=False)


_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")

KILL_SECONDS = 2.0
"""Maximum wait for the end of killed processes, which the kernel may delay."""


class ProcessUse(NamedTuple):
    """Resources used so far by one process or several."""

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

        uses = [self._uses[pid] for pid in (root, *self.descendants(root))]
        return ProcessUse(
            sum(use.cpu_seconds for use in uses), sum(use.memory_bytes for use in uses)
        )

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
    uses = {root: tree.use(root) for root in roots}
    return {root: use for root, use in uses.items() if use is not None}


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
    for line in (_read_text(path) or "").splitlines():
        if line.startswith(name):
            return int(line[len(name) :], base)

    return None


def process_state(pid: int) -> str:
    """Return the kernel's state of a process, a letter of proc(5); empty if unknown.

    `T`: stopped. `D`: in a call that cannot be interrupted.
    """
    stat = _read_stat(pid)
    return stat[0] if stat else ""


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
        cpu = sum(map(int, values[11:15])) / _TICKS_PER_SECOND
        use = ProcessUse(cpu, int(values[21]) * _PAGE_BYTES)
        return values[0].decode("ascii"), int(values[1]), use
    except (OSError, ValueError, IndexError):
        return None
    finally:
        os.close(file)


def machine_memory() -> tuple[int, int] | None:
    """Return used and total bytes of the container's or machine's memory; None if unknown."""
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
    text = _read_text("/sys/fs/cgroup/memory.events") or _read_text("/proc/vmstat") or ""
    lines = (line.split() for line in text.splitlines())
    return next((int(words[1]) for words in lines if words[:1] == ["oom_kill"]), 0)


def _read_text(path: str) -> str | None:
    try:
        with open(path, encoding="ascii", errors="replace") as file:
            return file.read()
    except OSError:
        return None
