"""Helper processes that run this package."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path

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


def run_module(module: str, package: str = "cloudtrain.providers") -> tuple[str, ...]:
    """Return the command that runs `main` of a module below `package`.

    Works wherever this package is. No environment variable names the package, so the job's
    environment stays untouched.
    """
    return (
        sys.executable,
        "-c",
        _RUN.format(module=f"{package}.{module}"),
        str(Path(__file__).parents[3]),
    )


def reap_in_background(process: subprocess.Popen[bytes]) -> None:
    """Reap a process in the background if it ends before this one, without ever waiting for it."""

    def wait() -> None:
        with suppress(ChildProcessError):
            os.waitpid(process.pid, 0)

    threading.Thread(target=wait, daemon=True).start()
    process.returncode = 0
