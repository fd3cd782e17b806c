"""How a rank hears that it is to stop, and that it leaves also when it can never stop in order."""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

LEAST_SECONDS = 10.0
"""Without a step since SIGTERM, after which a rank is taken to hang."""
STEPS = 3
"""As many times its longest step so far is waited for, if that is more."""
CODE = 143
"""What a shell says of a process that SIGTERM ended."""


class Stop:
    """Whether SIGTERM came. A second one ends the process: the collective it waits in may never return.

    So does a long silence after the first. torchrun sends SIGTERM to the others when a rank has died, and then an NCCL
    kernel may wait for that rank for good, and the main thread for the kernel: no handler of Python's runs any more.
    """

    def __init__(self, least: float = LEAST_SECONDS) -> None:
        self.asked = False
        self._least, self._longest, self._busy = least, 0.0, 0
        self._beaten = 0.0

    def listen(self) -> None:
        """To be called in the main thread."""
        read, write = socket.socketpair()
        write.setblocking(False)
        threading.Thread(target=self._watch, args=(read,), name="sigterm", daemon=True).start()
        signal.set_wakeup_fd(write.detach(), warn_on_full_buffer=False)
        signal.signal(signal.SIGTERM, self._on_signal)

    def beat(self) -> None:
        """One step is done, of training or of evaluation."""
        now = time.monotonic()
        if self._beaten:  # the first one is known by how long it took to begin
            self._longest = max(self._longest, now - self._beaten)
        self._beaten = now

    @contextmanager
    def patience(self) -> Iterator[None]:
        """What is under way may take long, and is worth it: a checkpoint, or the model at the end."""
        self._busy += 1
        try:
            yield
        finally:
            self._busy -= 1
            self._beaten = time.monotonic()

    def _on_signal(self, *_: object) -> None:
        if self.asked:
            os._exit(CODE)
        self.asked = True

    def _watch(self, read: socket.socket) -> None:
        """In a thread of its own: signals are written to `read` even while the main thread does not get to them."""
        while signal.SIGTERM not in read.recv(64):
            pass
        asked = time.monotonic()
        while True:
            most = max(self._least, STEPS * self._longest)
            left = max(asked, self._beaten) + most - time.monotonic()
            if left <= 0 and not self._busy:
                os.write(2, f"no step for {most:.0f} s since SIGTERM: this rank hangs, and leaves\n".encode())
                os._exit(CODE)
            time.sleep(max(left, 0.05 * self._least))
