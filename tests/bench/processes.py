"""The processes of a benchmark: the cost of a command with its child processes, and a place to run
it in.

Importing it makes this process a subreaper: a process that outlives its parent becomes our child,
so that its CPU time is counted here when it ends, and a benchmark leaves no process behind.
"""

from __future__ import annotations

import atexit
import ctypes
import os
import resource
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

PR_SET_CHILD_SUBREAPER = 36
BIN = Path(sys.executable).parent
"""Folder of the console scripts of this Python."""


@dataclass(frozen=True, slots=True)
class Cost:
    """Costs of one call in seconds. CPU: user and system time of the whole tree of processes."""

    wall: float
    cpu: float


def cost(argv: Sequence[str | Path], env: Mapping[str, str], cwd: Path, limit: float = 300) -> Cost:
    """Run a command to its end; raise RuntimeError on failure. CPU includes every process that it
    started.
    """
    with tempfile.TemporaryFile() as output:
        before = _children_cpu()
        start = time.perf_counter()
        process = subprocess.Popen(
            argv, env=env, cwd=cwd, stdin=subprocess.DEVNULL, stdout=output, stderr=output
        )
        watch = threading.Timer(limit, end_all)  # `wait(limit)` would look only every 50 ms
        watch.start()
        code = process.wait()
        wall = time.perf_counter() - start
        watch.cancel()
        reap_all(limit)
        cpu = _children_cpu() - before
        if code != 0:
            output.seek(0)
            raise RuntimeError(
                f"{argv} exited with code {code}: {output.read().decode(errors='replace')[-2000:]}"
            )
    return Cost(wall, cpu)


def reap_all(limit: float) -> None:
    """Wait for every process that is ours by now; TimeoutError after `limit` seconds."""
    deadline = time.monotonic() + limit
    with suppress(ChildProcessError):
        while True:
            if os.waitpid(-1, os.WNOHANG)[0] == 0:
                if time.monotonic() > deadline:
                    raise TimeoutError("processes were left running")
                time.sleep(0.005)


def end_all() -> None:
    """Kill and collect every process that descends from this one."""
    while children := _descendants():
        for pid in children:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        with suppress(TimeoutError):
            reap_all(0.2)


@contextmanager
def workplace() -> Iterator[tuple[Path, dict[str, str]]]:
    """Provide a scratch folder, and an environment that stores everything there and caches bytecode
    as usual.
    """
    with tempfile.TemporaryDirectory(prefix="cloudtrain-bench-") as scratch:
        place = Path(scratch).resolve()
        dropped = ("PYTHON", "CLOUDTRAIN_", "PET_", "TORCH", "OMP_", "XDG_")
        env = {key: value for key, value in os.environ.items() if not key.startswith(dropped)}
        env |= {
            "HOME": str(place),
            "CLOUDTRAIN_DATA_DIR": str(place / "data"),
            "PATH": f"{BIN}:{env['PATH']}",
        }
        try:
            yield place, env
        finally:
            end_all()


def _children_cpu() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def _descendants() -> list[int]:
    parents: dict[int, int] = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            with suppress(OSError):
                parents[int(folder.name)] = int(
                    (folder / "stat").read_text().rpartition(")")[2].split()[1]
                )
    processes = {os.getpid()}
    while new := {
        pid for pid, parent in parents.items() if parent in processes and pid not in processes
    }:
        processes |= new
    return sorted(processes - {os.getpid()})


if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
    raise OSError(ctypes.get_errno(), "this process cannot become a subreaper; Linux is needed")
atexit.register(end_all)
# So that what was started is ended then, too.
signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
