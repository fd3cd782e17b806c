"""Runs in use: a reader of a whole run shares its lock, and a removal needs it alone."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from cloudtrain.runs.files import storing
from cloudtrain_wire.file_locks import acquire, is_locked

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


@contextmanager
def claimed(run: Path) -> Iterator[bool]:
    """Lock the folder of a run, if no process watches, reads, submits or drives it; else False.

    A file is free. Raise StorageError if the disk fails or lacks locks.
    """
    if not run.is_dir():
        yield True
        return

    with storing(run):
        lock = acquire(run / LOCK, wait=False)

    drivers = (
        path for path in (*run.glob("*.lock"), *run.glob("logs/*.lock")) if path.name != LOCK
    )
    try:
        yield lock is not None and not any(map(is_locked, drivers))
    finally:
        if lock is not None:
            lock.release()
