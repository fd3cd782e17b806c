"""Whether a run's supervisor lives, by more than one sign; and the end of whatever a dead one left running.

Its lock, its identity and its heartbeat speak together: a lock alone is not seen across some network disks, a process
id alone means nothing in another container. What is not proven dead is neither ended nor called so.
"""

from __future__ import annotations

import json
import os
import signal
import tempfile
import time
from contextlib import suppress
from enum import Enum
from pathlib import Path

from cloudtrain.providers.emulation.run_paths import RunPaths
from cloudtrain.runs.files import is_locked, read_regular_file
from cloudtrain.runs.identity import ProcessIdentity

KILL_TIMEOUT_SECONDS = 5
"""How long what was killed may take to be gone."""

HEARTBEAT_SECONDS = 5
SILENCE_SECONDS = 60
"""A supervisor that we cannot look at ourselves counts as living for so long after its last heartbeat."""


class SupervisorState(Enum):
    """What is known of a run's supervisor."""

    NOT_BEGUN = "has not taken the run on"
    ALIVE = "lives, or has shown a heartbeat just now"
    DEAD = "is proven to be gone"
    UNKNOWN = "shows no heartbeat, and whether it lives cannot be told from here"


def supervisor_state(run: Path, started: ProcessIdentity | None = None) -> SupervisorState:
    """What the signs say together. `started`: who was started to take the run on, while it has not said so itself."""
    held = is_locked(RunPaths(run).lock)
    if held:
        return SupervisorState.ALIVE
    who = identity_of(run)
    if who is None:
        if has_begun(run):  # by a version of ours that wrote its process id alone
            return SupervisorState.DEAD if held is False else SupervisorState.UNKNOWN
        if started is None or not started.shares_pid_namespace():
            return SupervisorState.NOT_BEGUN
        who = started
    if who.shares_pid_namespace():
        return SupervisorState.DEAD if who.is_alive() is False else SupervisorState.ALIVE
    if silence_seconds(run) < SILENCE_SECONDS:
        return SupervisorState.ALIVE
    if held is False and who.shares_kernel():  # whose locks all its containers share
        return SupervisorState.DEAD
    return SupervisorState.DEAD if who.is_from_earlier_boot() else SupervisorState.UNKNOWN


def identity_of(run: Path) -> ProcessIdentity | None:
    """Who took the run on, by its own account."""
    try:
        return ProcessIdentity.from_json(json.loads(read_regular_file(RunPaths(run).supervisor_file)))
    except (OSError, ValueError, RecursionError):
        return None


def write_identity(run: Path) -> None:
    """Write down that this very process is the run's supervisor; whole, or not at all."""
    file = RunPaths(run).supervisor_file
    draft = file.with_name(f".{file.name}")
    draft.write_text(json.dumps(ProcessIdentity.of(os.getpid()).to_json()))
    draft.replace(file)


def write_heartbeat(run: Path) -> None:
    """A sign of life, by the clock of the disk. A disk that will not take it now may do so later."""
    with suppress(OSError):
        os.utime(RunPaths(run).supervisor_file)


def silence_seconds(run: Path) -> float:
    """How long ago the last heartbeat was, by the clock of the disk; endless, when there never was one."""
    return disk_time(run) - last_heartbeat(run)


def last_heartbeat(run: Path) -> float:
    """When the last heartbeat was, as a Unix timestamp by the clock of the disk; long ago when there never was."""
    try:
        return RunPaths(run).supervisor_file.stat().st_mtime
    except OSError:
        return float("-inf")


def disk_time(folder: Path) -> float:
    """The clock of a disk, perhaps that of another machine, as a Unix timestamp; our own where it cannot be asked."""
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            return os.fstat(file.fileno()).st_mtime
    except OSError:
        return time.time()


def send_stop_signal(run: Path) -> None:
    """SIGTERM to the supervisor, if it is proven that the process is the one. It reads the stop file in any case."""
    who = identity_of(run)
    if who is None or not who.is_alive():
        return
    with suppress(OSError):
        if not hasattr(os, "pidfd_open"):
            os.kill(who.pid, signal.SIGTERM)
            return
        process = os.pidfd_open(who.pid)
        try:
            if who.is_alive():  # still the same, now that its number cannot be given to another
                signal.pidfd_send_signal(process, signal.SIGTERM)
        finally:
            os.close(process)


def has_begun(run: Path) -> bool:
    """Whether a supervisor has ever taken the run on: it writes its process id once it holds the lock."""
    try:
        return RunPaths(run).lock.stat().st_size > 0
    except OSError:
        return False


RUN_DIR_VARIABLE = "CLOUDTRAIN_RUN_DIR"
"""The variable that every process of a run inherits; the folder tells runs of the same id apart."""


def end_orphans(run: Path, timeout_seconds: float = 0) -> int:
    """Kill every process that carries this run's mark in its environment; returns how many had to be killed.

    `timeout_seconds`: how long they may take to end by themselves first, as launchers do that lost their supervisor.
    Finds those too that left their process group or session. Linux tells their environment in /proc; elsewhere
    the process groups are all there is, and the supervisor ends those itself.
    """
    killed: set[int] = set()
    began = time.monotonic()
    while alive := [pid for pid in _run_processes(run) if pid != os.getpid()]:
        waited = time.monotonic() - began
        if waited > timeout_seconds + KILL_TIMEOUT_SECONDS:
            break
        if waited >= timeout_seconds:
            for pid in alive:
                with suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)
                    killed.add(pid)
        time.sleep(0.02)
    return len(killed)


def _run_processes(run: Path) -> list[int]:
    mark = f"{RUN_DIR_VARIABLE}={run}".encode()
    found = []
    for file in Path("/proc").glob("[0-9]*/environ"):
        try:
            if mark in file.read_bytes().split(b"\0") and _same_folder_seen_by(file.parent, run):
                found.append(int(file.parent.name))
        except OSError:
            continue
    return found


def _same_folder_seen_by(process: Path, run: Path) -> bool:
    """Whether the run's path means to a process what it means to us: in a container it may be another folder."""
    root = process / "root"
    try:
        return os.path.samestat((root / run.relative_to("/")).stat(), run.stat())
    except FileNotFoundError:  # removed, or hidden below what a rehearsal has mounted
        mine = Path("/proc/self/ns/pid").readlink(), Path("/").stat()
        return (process / "ns" / "pid").readlink() == mine[0] and os.path.samestat(root.stat(), mine[1])
