"""A thread that writes files while training goes on: one piece of work after the other, none after
a failed one.
"""

from __future__ import annotations

import threading
from collections.abc import Callable


class Background:
    """Work that is done in the order in which it was started."""

    def __init__(self) -> None:
        self._last: threading.Thread | None = None
        self._error: BaseException | None = None

    def start(self, work: Callable[[], None]) -> threading.Thread:
        """Do this after what was started before; left out if that failed. Returns its thread, which
        may be joined.
        """
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
        """Wait until all is done. Raises the error of what failed."""
        if self._last is not None:
            self._last.join()
            self._last = None
        self.check()

    def check(self) -> None:
        """Raise the error of what failed, once."""
        if self._error is not None:
            error = self._error
            self._error = None
            raise error
