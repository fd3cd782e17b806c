"""Helper processes that run this package, and end with the process that started them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from cloudtrain_launcher.process_identity import ProcessIdentity

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


_tied: list[int] = []
"""Process whose runs end with it; its forks do not count."""


def end_runs_with_this_process() -> None:
    """Stop each run that this process starts from now on soon after this process ends."""
    _tied[:] = [os.getpid()]


@contextmanager
def runs_end_with_this_process() -> Iterator[None]:
    """Open a context for runs that end with this process."""
    before = list(_tied)
    end_runs_with_this_process()
    try:
        yield
    finally:
        _tied[:] = before


def lifeline() -> list[str]:
    """Return the supervisor's last argument if its run is to end with this process."""
    return [json.dumps(ProcessIdentity.of(os.getpid()).to_json())] if _tied == [os.getpid()] else []


def read_lifeline(arguments: list[str]) -> ProcessIdentity | None:
    """Return the process that a run ends with, from the result of `lifeline`, or None."""
    return ProcessIdentity.from_json(json.loads(arguments[0])) if arguments else None
