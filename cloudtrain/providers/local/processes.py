"""Helper processes that run this package, end with their parent, and use a port of their own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path

from cloudtrain_launcher import host

_RUN = """
import sys
sys.path[0] = sys.argv.pop(1)
from {module} import main
sys.exit(main(sys.argv[1:]))
"""

SUPERVISOR_PID = "CLOUDTRAIN_SUPERVISOR_PID"
"""Environment variable with the process id of the supervisor, whose end also ends the process that
has it.
"""

STOPPED = 5
"""Exit code of a launcher after a stop, and of a process that stands for one."""


def run_module(module: str, package: str = "cloudtrain.providers") -> tuple[str, ...]:
    """The command that runs `main` of a module below `package`, from wherever this package is.

    No environment variable names the package, so the job's environment stays untouched.
    """
    return (
        sys.executable,
        "-c",
        _RUN.format(module=f"{package}.{module}"),
        str(Path(__file__).parents[3]),
    )


def set_parent_death_signal(parent: int) -> None:
    """Have this process get SIGTERM when its parent ends for any reason (prctl(2)); does nothing
    outside Linux.

    Exits at once if `parent`, a process id, is not the parent any more.
    """
    host.set_parent_death_signal(parent, signal.SIGTERM)


def free_port() -> int:
    """A port on loopback that the system assigns to no other process for the next minute."""
    return host.free_port()


def reap_in_background(process: subprocess.Popen[bytes]) -> None:
    """Reap a process in the background if it ends before this one, without ever waiting for it."""

    def wait() -> None:
        with suppress(ChildProcessError):
            os.waitpid(process.pid, 0)

    threading.Thread(target=wait, daemon=True).start()
    process.returncode = 0
