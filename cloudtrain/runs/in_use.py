"""Runs in use: a reader of a whole run shares its lock, and a removal needs it alone."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from cloudtrain_wire.file_locks import FileLock, acquire, is_locked

LOCK = "use.lock"


@contextmanager
def in_use(run: Path) -> Iterator[None]:
    """Keep the folder of a run from being removed inside the block; others may use it, too."""
    lock = None
    with suppress(OSError):  # another user's folder, or one that is gone: reading it says so
        lock = acquire(run / LOCK, shared=True)

    try:
        yield
    finally:
        if lock is not None:
            lock.release()


def claim(run: Path) -> FileLock | None:
    """Lock a run that nothing uses; None if a process watches, reads, submits or drives it.

    Raise OSError if the disk fails or lacks locks.
    """
    lock = acquire(run / LOCK, wait=False)
    if lock is None:
        return None

    for path in (*run.glob("*.lock"), *run.glob("logs/*.lock")):
        if path.name != LOCK and is_locked(path):
            lock.release()
            return None

    return lock
