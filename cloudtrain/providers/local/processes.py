"""Processes of runs on this machine: their start, whether a supervisor lives, and their leftovers."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from enum import Enum
from pathlib import Path

from cloudtrain.runs.paths import RunPaths
from cloudtrain_wire.bounded_files import read_regular_file
from cloudtrain_wire.file_locks import FileLock, acquire, disk_time, is_locked
from cloudtrain_wire.process_identity import ProcessIdentity

_RUN = """
import sys
sys.path[0] = sys.argv.pop(1)
from {module} import main
sys.exit(main(sys.argv[1:]))
"""

SUPERVISOR_PID = "CLOUDTRAIN_SUPERVISOR_PID"
"""Environment variable with the supervisor's process id; its end also ends this process."""

STOPPED = 5
"""Exit code of a stopped launcher, and of a process in its place."""

KILL_TIMEOUT_SECONDS = 5
"""Seconds for killed processes to disappear."""

LOCK_TIMEOUT_SECONDS = 2
"""Seconds to try for the run's lock: observers hold it briefly, a supervisor for good."""

HEARTBEAT_SECONDS = 5
SILENCE_SECONDS = 60
"""Seconds of silence until a supervisor that cannot be inspected counts as dead."""

RUN_DIR_VARIABLE = "CLOUDTRAIN_RUN_DIR"
"""Variable of every process of a run: its folder, as run ids are not unique."""

_tied: list[int] = []
"""Process whose runs end with it; its forks do not count."""


def run_module(module: str) -> tuple[str, ...]:
    """Return the command that runs `main` of a module of a provider: `local.supervisor`.

    Works wherever this package is. No environment variable names the package, so the job's
    environment stays untouched.
    """
    return (
        sys.executable,
        "-c",
        _RUN.format(module=f"cloudtrain.providers.{module}"),
        str(Path(__file__).parents[3]),
    )


def reap_in_background(process: subprocess.Popen[bytes]) -> None:
    """Reap a process in the background if it ends before this one, without ever waiting for it."""

    def wait() -> None:
        with suppress(ChildProcessError):
            os.waitpid(process.pid, 0)

    threading.Thread(target=wait, daemon=True).start()
    process.returncode = 0


def end_runs_with_this_process() -> None:
    """Stop each run that this process starts from now on soon after this process ends."""
    _tied[:] = [os.getpid()]


def lifeline() -> list[str]:
    """Return the supervisor's last argument if its run is to end with this process."""
    if _tied != [os.getpid()]:
        return []

    return [ProcessIdentity.own_text()]


def read_lifeline(arguments: list[str]) -> ProcessIdentity | None:
    """Return the process that a run ends with, from the result of `lifeline`, or None."""
    if not arguments:
        return None

    return ProcessIdentity.from_json(json.loads(arguments[0]))


class SupervisorState(Enum):
    """Knowledge about a run's supervisor."""

    NOT_STARTED = "has not taken the run on"
    ALIVE = "lives, or has shown a heartbeat just now"
    DEAD = "is proven to be gone"
    UNKNOWN = "shows no heartbeat, and its process cannot be inspected from here"


def supervisor_state(run: Path, started: ProcessIdentity | None = None) -> SupervisorState:
    """Return the state by all signs together.

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
    """Return the supervisor's stored identity; None if it cannot be read."""
    try:
        return ProcessIdentity.from_json(
            json.loads(read_regular_file(RunPaths(run).supervisor_file))
        )
    except (OSError, ValueError, RecursionError):
        return None


def write_identity(run: Path) -> None:
    """Store this process as the run's supervisor, atomically."""
    file = RunPaths(run).supervisor_file
    draft = file.with_name(f".{file.name}")
    draft.write_text(ProcessIdentity.own_text())
    draft.replace(file)


def write_heartbeat(run: Path) -> None:
    """Set the heartbeat to now, by the clock of the disk. Ignore errors: the next may succeed."""
    with suppress(OSError):
        os.utime(RunPaths(run).supervisor_file)


def keep_heartbeat(run: Path) -> None:
    """Send heartbeats from a thread, so that a slow disk does not look like a dead supervisor."""
    while True:
        time.sleep(HEARTBEAT_SECONDS)
        write_heartbeat(run)


def take_lock(run: Path, timeout_seconds: float = LOCK_TIMEOUT_SECONDS) -> FileLock | None:
    """Lock a run for this supervisor; return None if another supervisor has it."""
    deadline = time.monotonic() + timeout_seconds
    while True:
        lock = acquire(RunPaths(run).lock, wait=False)
        if lock is not None:
            return lock
        # A slow observer has a shared lock; only a supervisor's counts.
        if time.monotonic() > deadline and is_locked(RunPaths(run).lock) is not False:
            return None
        time.sleep(0.01)


def silence_seconds(run: Path) -> float:
    """Return the seconds since the last heartbeat, by the clock of the disk; else infinity."""
    return disk_time(run) - last_heartbeat(run)


def last_heartbeat(run: Path) -> float:
    """Return the time of the last heartbeat, by the clock of the disk; else minus infinity."""
    try:
        return RunPaths(run).supervisor_file.stat().st_mtime
    except OSError:
        return float("-inf")


def send_stop_signal(run: Path) -> None:
    """Send SIGTERM if the process is proven to be the supervisor; the stop file always works."""
    identity = identity_of(run)
    is_of_another_run = is_locked(RunPaths(run).lock) is False  # this folder is a copy
    if is_of_another_run or identity is None or not identity.is_alive():
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
    """Return True if a supervisor ever started: it writes its process id under the lock."""
    try:
        return RunPaths(run).lock.stat().st_size > 0
    except OSError:
        return False


def end_orphans(run: Path, timeout_seconds: float = 0) -> int:
    """Kill all processes of a run, also outside its session; return the number of kills.

    `timeout_seconds`: time to end by themselves first, as launchers without a supervisor do. They
    are found by RUN_DIR_VARIABLE in /proc, and only there.
    """
    killed: set[int] = set()
    began = time.monotonic()
    while alive := [pid for pid in _run_processes(run) if pid != os.getpid()]:
        waited = time.monotonic() - began
        if waited >= timeout_seconds:
            for pid in alive:
                with suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)
                    killed.add(pid)
        if waited > timeout_seconds + KILL_TIMEOUT_SECONDS:
            break
        time.sleep(0.02)

    return len(killed)


def _run_processes(run: Path) -> list[int]:
    entry = os.fsencode(f"{RUN_DIR_VARIABLE}={run}")
    process_ids = []
    for file in Path("/proc").glob("[0-9]*/environ"):
        try:
            if entry in file.read_bytes().split(b"\0") and _same_folder_seen_by(file.parent, run):
                process_ids.append(int(file.parent.name))
        except OSError:
            continue

    return process_ids


def _same_folder_seen_by(process: Path, run: Path) -> bool:
    """Return True if the run's path is the same folder for that process, even in a container."""
    root = process / "root"
    try:
        return os.path.samestat((root / run.relative_to("/")).stat(), run.stat())
    except FileNotFoundError:  # removed, or hidden by a mount of a rehearsal
        same_pids = (process / "ns" / "pid").readlink() == Path("/proc/self/ns/pid").readlink()
        return same_pids and os.path.samestat(root.stat(), Path("/").stat())
