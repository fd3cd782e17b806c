"""File locks by flock(2), which end with their process. Standard library only.

The client shares this file. Some disks have no locks: NFS without its lock service, Lustre without
the option, many FUSE disks.
"""

from __future__ import annotations

import errno
import fcntl
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

NO_LOCKS = {errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOTSUP, errno.EINVAL}
"""Errors of flock(2) on a disk without locks."""

_FILE_MODE = 0o600


class FileLock:
    """A lock held until `release` or the end of the process. `file`: the open file."""

    def __init__(self, file: int) -> None:
        self.file = file

    def release(self) -> None:
        """Release the lock and close the file."""
        try:
            # Closing is not enough: a process that was forked meanwhile has the file open too.
            fcntl.flock(self.file, fcntl.LOCK_UN)
        finally:
            os.close(self.file)


def acquire(
    path: Path,
    *,
    wait: bool = True,
    shared: bool = False,
    flags: int = os.O_RDWR,
    on_wait: Callable[[], None] = lambda: None,
) -> FileLock | None:
    """Open a file, creating it if necessary, and lock it.

    Return None if another process holds the lock and `wait` is false. `shared`: others may hold it
    so, too. `flags`: how to open the file. `on_wait`: called once before waiting. Raise OSError if
    the disk fails or has no locks.
    """
    file = os.open(path, flags | os.O_CREAT, _FILE_MODE)

    kind = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
    try:
        is_held = _flock(file, kind, wait, on_wait)
    except OSError as error:
        os.close(file)
        if error.errno not in NO_LOCKS:
            raise

        why = "this disk has no file locks (flock): keep the data on another one (XDG_DATA_HOME)"
        raise OSError(error.errno, why, str(path)) from None
    except BaseException:
        os.close(file)
        raise

    if not is_held:
        os.close(file)
        return None

    return FileLock(file)


@contextmanager
def locked(
    path: Path, *, flags: int = os.O_RDWR, on_wait: Callable[[], None] = lambda: None
) -> Iterator[int]:
    """Hold the lock of a file inside the block; yield the open file. Raise OSError."""
    lock = acquire(path, flags=flags, on_wait=on_wait)
    assert lock is not None  # noqa: S101  (it has waited)

    try:
        yield lock.file
    finally:
        lock.release()


def is_locked(path: Path) -> bool | None:
    """Return whether any process holds the lock of a file; None if unknown.

    Unknown: no such file, or a disk without locks. On a network disk whose locks count on one
    machine only, False ignores other machines.
    """
    try:
        file = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    except OSError:
        return None

    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return None
    finally:
        os.close(file)

    return False


def disk_time(folder: Path) -> float:
    """Return the disk's time, which may be another machine's; else this machine's."""
    try:
        import tempfile  # rarely needed, and slow to import

        with tempfile.TemporaryFile(dir=folder) as file:
            return os.fstat(file.fileno()).st_mtime
    except OSError:
        return time.time()


def _flock(file: int, kind: int, wait: bool, on_wait: Callable[[], None]) -> bool:
    try:
        fcntl.flock(file, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        if not wait:
            return False

        on_wait()
        fcntl.flock(file, kind)

    return True
