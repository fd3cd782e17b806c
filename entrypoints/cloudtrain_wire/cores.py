"""CPU cores of this process. Standard library only."""

from __future__ import annotations

import os


def available_cores() -> int:
    """Return the number of CPU cores of this process, possibly fewer than the machine's."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))

    return os.cpu_count() or 1
