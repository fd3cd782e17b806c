"""Ties a process's life to its parent's: when the parent dies, by whatever signal, this one dies too."""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def die_with(parent: int, signum: int = signal.SIGKILL) -> None:
    """Ask the kernel for `signum` when the parent ends (prctl(2), Linux); elsewhere do nothing.

    Exits at once when `parent` is gone already. The signal comes when the parent's *thread* that started this
    process ends, so parents start their children from their main thread.
    """
    if sys.platform != "linux":
        return
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signum))
    if os.getppid() != parent:
        os._exit(128 + int(signum))
