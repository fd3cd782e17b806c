"""End of a process with its parent. Standard library only."""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def set_parent_death_signal(parent: int, signum: int = signal.SIGKILL) -> None:
    """Make the kernel send `signum` to this process at its parent's end (prctl(2)); Linux only.

    Exit at once if the process id `parent` is dead already. The signal is sent at the end of the
    parent's *thread* that started this process, so parents must start their children from the main
    thread.
    """
    if sys.platform != "linux":
        return

    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signum))
    if os.getppid() != parent:
        os._exit(128 + int(signum))
