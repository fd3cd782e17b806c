"""A thread that writes files during training, in order, until one piece of work fails."""

from __future__ import annotations

import threading
from collections.abc import Callable


class Background:
    """Run pieces of work in the order of their start."""

    def __init__(self) -> None:
        self._last: threading.Thread | None = None
        self._error: BaseException | None = None

    def start(self, work: Callable[[], None]) -> threading.Thread:
        """Run this after earlier work, unless that failed. Return its thread, for `join`."""
        before = self._last

        def run() -> None:
            if before is not None:
                before.join()
            if self._error is None:
                try:
                    work()
                except BaseException as error:  # noqa: BLE001  (raised by check)
                    self._error = error

        self._last = threading.Thread(target=run, name="checkpoint")
        self._last.start()
        return self._last

    def finish(self) -> None:
        """Wait until all work is done. Raise the error of failed work."""
        if self._last is not None:
            self._last.join()
            self._last = None
        self.check()

    def check(self) -> None:
        """Raise the error of failed work, once."""
        if self._error is not None:
            error = self._error
            self._error = None
            raise error
