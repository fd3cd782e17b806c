"""Exit of a process at a deadline, whatever holds the interpreter's lock. Standard library only.

A Python thread needs the lock, which a C++ destructor may hold while it waits. The C library's
timer calls `_exit` in a thread independent of Python (timer_create(2)).
"""

from __future__ import annotations

import ctypes
import os
import threading
from typing import Any

_CLOCK_MONOTONIC = 1
_SIGEV_THREAD = 2


class _Event(ctypes.Structure):
    """`struct sigevent` on Linux, which has 64 bytes."""

    _fields_ = (
        ("value", ctypes.c_void_p),
        ("signal", ctypes.c_int),
        ("notify", ctypes.c_int),
        ("function", ctypes.c_void_p),
        ("attributes", ctypes.c_void_p),
        ("padding", ctypes.c_char * 32),
    )


class _Setting(ctypes.Structure):
    """`struct itimerspec`: the interval, which is 0, and the time until the timer expires."""

    _fields_ = (
        ("interval_seconds", ctypes.c_long),
        ("interval_nanoseconds", ctypes.c_long),
        ("seconds", ctypes.c_long),
        ("nanoseconds", ctypes.c_long),
    )


class ExitTimer:
    """Timer that exits this process with `code`; without a system timer it uses a Python thread."""

    def __init__(self, code: int) -> None:
        self._code = code
        self._library, self._timer = _create(code)
        self._thread: threading.Timer | None = None

    def start(self, seconds: float) -> None:
        """End the process in `seconds`, more than 0; this replaces an earlier deadline."""
        if self._timer is None:
            if self._thread is not None:
                self._thread.cancel()
            self._thread = threading.Timer(seconds, os._exit, [self._code])
            self._thread.daemon = True
            self._thread.start()
        else:
            setting = _Setting(0, 0, int(seconds), max(1, int(seconds % 1 * 1e9)))
            self._library.timer_settime(self._timer, 0, ctypes.byref(setting), None)


def _create(code: int) -> tuple[Any, ctypes.c_void_p | None]:
    """Return the C library and a stopped timer; no timer on systems without one (macOS)."""
    try:
        library = ctypes.CDLL(None)
        if not hasattr(library, "timer_create"):
            library = ctypes.CDLL("librt.so.1")  # before glibc 2.34
        function = ctypes.cast(ctypes.CDLL(None)._exit, ctypes.c_void_p)
        event = _Event(code, 0, _SIGEV_THREAD, function)
        timer = ctypes.c_void_p()
        failed = library.timer_create(_CLOCK_MONOTONIC, ctypes.byref(event), ctypes.byref(timer))
    except (OSError, AttributeError, TypeError):
        return None, None
    return library, None if failed else timer
