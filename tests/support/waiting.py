"""How tests wait for what a job does: they look until there is something to see."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from tests.support.limits import HANG_SECONDS

T = TypeVar("T")
PATIENCE_SECONDS = HANG_SECONDS


def eventually(look: Callable[[], T], seconds: float = PATIENCE_SECONDS) -> T:
    """What `look` finds, as soon as it finds something."""
    deadline = time.monotonic() + seconds
    while not (found := look()):
        if time.monotonic() > deadline:
            raise TimeoutError(f"nothing after {seconds} s")
        time.sleep(0.01)
    return found
