"""True if a run's supervisor is alive, from its lock, identity and heartbeat; and ending what a
dead one left running.

No single sign is enough: some network disks do not show locks, and a process id means nothing in
another container. A supervisor that is not proven dead is not treated as dead.
"""

from __future__ import annotations

import json
import os
import signal
import time
from contextlib import suppress
from enum import Enum
from pathlib import Path

from cloudtrain.providers.rehearsal.run_paths import RunPaths
from cloudtrain_launcher.file_locks import FileLock, acquire, disk_time, is_locked
from cloudtrain_launcher.packages.bounded_files import read_regular_file
from cloudtrain_launcher.process_identity import ProcessIdentity

KILL_TIMEOUT_SECONDS = 5
"""How long killed processes may take to disappear."""

LOCK_TIMEOUT_SECONDS = 2
"""How long to try for the run's lock: observers hold it for a moment, another supervisor for good.
"""

HEARTBEAT_SECONDS = 5
SILENCE_SECONDS = 60
"""A supervisor whose process cannot be inspected from here counts as alive this long after its last
heartbeat.
"""


class SupervisorState(Enum):
    """What is known about a run's supervisor."""

    NOT_STARTED = "has not taken the run on"
    ALIVE = "lives, or has shown a heartbeat just now"
    DEAD = "is proven to be gone"
    UNKNOWN = "shows no heartbeat, and whether it lives cannot be told from here"


def supervisor_state(run: Path, started: ProcessIdentity | None = None) -> SupervisorState:
    """The state by all signs together.

    `started`: the process that was started as supervisor, until it has written its own identity.
    """
    held = is_locked(RunPaths(run).lock)
    if held:
        return SupervisorState.ALIVE
    identity = identity_of(run)
    if identity is None:
        if has_started(run):  # by an earlier version, which wrote only its process id
            return SupervisorState.DEAD if held is False else SupervisorState.UNKNOWN
        if started is None or not started.shares_pid_namespace():
            return SupervisorState.NOT_STARTED
        identity = started
    if identity.shares_pid_namespace():
        return SupervisorState.DEAD if identity.is_alive() is False else SupervisorState.ALIVE
    if silence_seconds(run) < SILENCE_SECONDS:
        return SupervisorState.ALIVE
    if held is False and identity.shares_kernel():  # containers of one kernel share its locks
        return SupervisorState.DEAD
    return SupervisorState.DEAD if identity.is_from_earlier_boot() else SupervisorState.UNKNOWN


def identity_of(run: Path) -> ProcessIdentity | None:
    """The supervisor's identity as it wrote it down; None if there is none that can be read."""
    try:
        return ProcessIdentity.from_json(
            json.loads(read_regular_file(RunPaths(run).supervisor_file))
        )
    except (OSError, ValueError, RecursionError):
        return None


def write_identity(run: Path) -> None:
    """Write down that this process is the run's supervisor, atomically."""
    file = RunPaths(run).supervisor_file
    draft = file.with_name(f".{file.name}")
    draft.write_text(json.dumps(ProcessIdentity.of(os.getpid()).to_json()))
    draft.replace(file)


def write_heartbeat(run: Path) -> None:
    """Set the heartbeat to now, by the clock of the disk. Errors are ignored: the next one may
    succeed.
    """
    with suppress(OSError):
        os.utime(RunPaths(run).supervisor_file)


def keep_heartbeat(run: Path) -> None:
    """For a thread of its own, so that a slow disk or a large source does not look like a dead
    supervisor.
    """
    while True:
        time.sleep(HEARTBEAT_SECONDS)
        write_heartbeat(run)


def take_lock(run: Path, timeout_seconds: float = LOCK_TIMEOUT_SECONDS) -> FileLock | None:
    """Lock a run for this supervisor; None if another supervisor has it."""
    deadline = time.monotonic() + timeout_seconds
    while True:
        lock = acquire(RunPaths(run).lock, wait=False)
        if lock is not None or time.monotonic() > deadline:
            return lock
        time.sleep(0.01)


def silence_seconds(run: Path) -> float:
    """Seconds since the last heartbeat, by the clock of the disk; infinite if there was none."""
    return disk_time(run) - last_heartbeat(run)


def last_heartbeat(run: Path) -> float:
    """Unix timestamp of the last heartbeat, by the clock of the disk; minus infinity if there was
    none.
    """
    try:
        return RunPaths(run).supervisor_file.stat().st_mtime
    except OSError:
        return float("-inf")


def send_stop_signal(run: Path) -> None:
    """Send SIGTERM to the supervisor if its process is proven to be the right one; the stop file
    works in any case.
    """
    identity = identity_of(run)
    if identity is None or not identity.is_alive():
        return
    with suppress(OSError):
        if not hasattr(os, "pidfd_open"):
            os.kill(identity.pid, signal.SIGTERM)
            return
        process = os.pidfd_open(identity.pid)
        try:
            if identity.is_alive():  # check again, now that its id cannot be reused
                signal.pidfd_send_signal(process, signal.SIGTERM)
        finally:
            os.close(process)


def has_started(run: Path) -> bool:
    """Return True if a supervisor has ever started: it writes its process id once it holds the lock."""
    try:
        return RunPaths(run).lock.stat().st_size > 0
    except OSError:
        return False


RUN_DIR_VARIABLE = "CLOUDTRAIN_RUN_DIR"
"""Environment variable that every process of a run inherits: its folder, as run ids are not unique.
"""


def end_orphans(run: Path, timeout_seconds: float = 0) -> int:
    """Kill every process of a run, also those that left its process group or session; returns how
    many were killed.

    `timeout_seconds`: how long they may take to end by themselves first, as launchers without a
    supervisor do. They are found by RUN_DIR_VARIABLE in /proc; where there is no /proc, none are
    found.
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
    entry = os.fsencode(f"{RUN_DIR_VARIABLE}={run}")
    found = []
    for file in Path("/proc").glob("[0-9]*/environ"):
        try:
            if entry in file.read_bytes().split(b"\0") and _same_folder_seen_by(file.parent, run):
                found.append(int(file.parent.name))
        except OSError:
            continue
    return found


def _same_folder_seen_by(process: Path, run: Path) -> bool:
    """Return True if the run's path is the same folder for that process; in a container it may be another
    one.
    """
    root = process / "root"
    try:
        return os.path.samestat((root / run.relative_to("/")).stat(), run.stat())
    except FileNotFoundError:  # removed, or hidden by a mount of a rehearsal
        same_pids = (process / "ns" / "pid").readlink() == Path("/proc/self/ns/pid").readlink()
        return same_pids and os.path.samestat(root.stat(), Path("/").stat())
