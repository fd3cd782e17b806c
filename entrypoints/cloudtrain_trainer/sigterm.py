"""Handle SIGTERM in a rank: stop after the current step, and end a rank that hangs."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager

from cloudtrain_launcher.sigterm import on_sigterm

MIN_SECONDS = 10.0
"""After SIGTERM, a rank without a step for this long counts as hanging."""
LONGEST_STEPS = 3
"""The limit is at least this many times the longest step."""
EXIT_CODE = 143
"""128 + SIGTERM, as shells report it."""


class Stop:
    """A stop requested by SIGTERM. A second SIGTERM ends the process at once.

    A collective may never return, so a rank without a step for too long after the first is ended,
    too. When a rank dies, torchrun sends SIGTERM to the others; an NCCL kernel may then wait for
    the dead rank forever, and the main thread for the kernel, so that Python runs no signal
    handler.
    """

    def __init__(self, min_seconds: float = MIN_SECONDS) -> None:
        self.requested = False
        self._min_seconds = min_seconds
        self._longest = 0.0
        self._busy = 0
        self._last_step = 0.0

    def listen(self) -> None:
        """Handle SIGTERM from now on. ValueError outside of the main thread (signal.signal)."""
        on_sigterm(self._watch)
        signal.signal(signal.SIGTERM, self._on_signal)

    def step_done(self) -> None:
        """Record the end of a step or of a batch of an evaluation: the limit restarts."""
        time_now = time.monotonic()
        if self._last_step:  # the time before the first step includes the start-up
            self._longest = max(self._longest, time_now - self._last_step)

        self._last_step = time_now

    @contextmanager
    def busy(self) -> Iterator[None]:
        """Expect no step in this context: saving may take many seconds."""
        self._busy += 1

        try:
            yield
        finally:
            self._busy -= 1
            self._last_step = time.monotonic()

    def _on_signal(self, *_: object) -> None:
        if self.requested:
            os._exit(EXIT_CODE)
        self.requested = True

    def _watch(self) -> None:
        """End this rank if it makes no step, from SIGTERM on."""
        requested_at = time.monotonic()

        while True:
            limit = max(self._min_seconds, LONGEST_STEPS * self._longest)
            remaining = max(requested_at, self._last_step) + limit - time.monotonic()
            if remaining <= 0 and not self._busy:
                os.write(
                    2,
                    f"no step for {limit:.0f} s since SIGTERM: this rank hangs and exits\n".encode(),
                )
                os._exit(EXIT_CODE)

            time.sleep(max(remaining, 0.05 * self._min_seconds))
