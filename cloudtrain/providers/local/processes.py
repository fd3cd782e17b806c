"""Processes of our own: they run this very package, and end with whoever started them."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from pathlib import Path

_RUN = """
import sys
sys.path[0] = sys.argv.pop(1)
from cloudtrain.providers.{module} import main
sys.exit(main(sys.argv[1:]))
"""
_PR_SET_PDEATHSIG = 1

SUPERVISOR_PID = "CLOUDTRAIN_SUPERVISOR_PID"
"""The variable by which a child knows whom it ends with."""

STOPPED = 5
"""A launcher's exit code after a stop, and that of whoever stands for one."""


def run_module(module: str) -> tuple[str, ...]:
    """What to execute for a module of this folder: this very package, wherever it lies.

    No variable tells of it, so that a job's environment holds no trace.
    """
    return (sys.executable, "-c", _RUN.format(module=module), str(Path(__file__).parents[3]))


def set_parent_death_signal(parent: int) -> None:
    """Get SIGTERM when the parent ends, by whatever signal (prctl(2), Linux); elsewhere nothing is promised.

    Leaves at once when `parent` is gone already.
    """
    if sys.platform != "linux":
        return
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGTERM))
    if os.getppid() != parent:
        os._exit(128 + signal.SIGTERM)
