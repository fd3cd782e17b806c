"""SIGTERM, heard even while native code runs. Standard library only."""

from __future__ import annotations

import signal
import socket
import threading
from collections.abc import Callable


def on_sigterm(act: Callable[[], None]) -> None:
    """Call `act` in a thread at SIGTERM, even while the main thread runs native code.

    Such code runs no signal handler. Call it in the main thread.
    """
    read, write = socket.socketpair()
    write.setblocking(False)

    def watch() -> None:
        while signal.SIGTERM not in read.recv(64):
            pass

        act()

    threading.Thread(target=watch, name="sigterm", daemon=True).start()
    signal.set_wakeup_fd(write.detach(), warn_on_full_buffer=False)
