"""Whether a run's supervisor lives, and the end of whatever a dead one left running."""

from __future__ import annotations

import fcntl
import os
import signal
import time
from contextlib import suppress
from pathlib import Path

from cloudtrain.local.folders import RunPaths

PATIENCE_SECONDS = 5
"""How long what was killed may take to be gone."""


def supervisor_pid(run: Path) -> int | None:
    """The process id of a living supervisor. The lock tells, so a reused process id deceives nobody."""
    try:
        file = os.open(RunPaths(run).lock, os.O_RDONLY)
    except OSError:
        return None
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        text = os.pread(file, 32, 0).decode() or "0"
        return int(text)
    finally:
        os.close(file)
    return None


def has_begun(run: Path) -> bool:
    """Whether a supervisor has ever taken the run on: it writes its process id once it holds the lock."""
    try:
        return RunPaths(run).lock.stat().st_size > 0
    except OSError:
        return False


MARK = "CLOUDTRAIN_RUN_DIR"
"""The variable that every process of a run inherits; the folder tells runs of the same id apart."""


def end_leftovers(run: Path, patience_seconds: float = 0) -> int:
    """Kill every process that carries this run's mark in its environment; returns how many had to be killed.

    `patience_seconds`: how long they may take to end by themselves first, as launchers do that lost their supervisor.
    Finds those too that left their process group or session. Linux tells their environment in /proc; elsewhere
    the process groups are all there is, and the supervisor ends those itself.
    """
    mark = f"{MARK}={run}".encode()
    killed: set[int] = set()
    began = time.monotonic()
    while alive := [pid for pid in _carriers(mark) if pid != os.getpid()]:
        waited = time.monotonic() - began
        if waited > patience_seconds + PATIENCE_SECONDS:
            break
        if waited >= patience_seconds:
            for pid in alive:
                with suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)
                    killed.add(pid)
        time.sleep(0.02)
    return len(killed)


def _carriers(mark: bytes) -> list[int]:
    found = []
    for file in Path("/proc").glob("[0-9]*/environ"):
        try:
            if mark in file.read_bytes().split(b"\0"):
                found.append(int(file.parent.name))
        except OSError:
            continue
    return found
