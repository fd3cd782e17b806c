"""File locks, which end with their process: by flock(2), on Windows by msvcrt. Standard library only.

The client shares this file. Some disks lack locks: NFS without its lock service, Lustre without
the option, many FUSE disks.
"""

from __future__ import annotations

import errno
import os
import random
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from cloudtrain_wire.bounded_files import PLAIN

if sys.platform == "win32":
    import msvcrt
else:
    import fcntl

NO_LOCKS = {errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOTSUP, errno.EINVAL}
"""Errors of flock(2) on a disk without locks."""

_FILE_MODE = 0o600

_FIRST_BYTE = 1 << 30
_BYTES = 1 << 20
"""Locked bytes on Windows, behind any content, since others may not read a locked byte. Its locks are
exclusive: a shared lock takes one of these bytes by chance, any other lock takes all."""

_RETRY_SECONDS = 0.05


class FileLock:
    """A lock held until `release` or the end of the process. `file`: the open file."""

    def __init__(self, file: int) -> None:
        self.file = file

    def release(self) -> None:
        """Release the lock and close the file."""
        try:
            # Closing is not enough: a process that was forked meanwhile has the file open too.
            if sys.platform != "win32":
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
    the disk fails or lacks locks.
    """
    file = os.open(path, flags | os.O_CREAT | PLAIN, _FILE_MODE)

    try:
        is_held = _acquire(file, shared, wait, on_wait)
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
        file = os.open(path, os.O_RDONLY | PLAIN)
    except OSError:
        return None

    try:
        _lock(file, shared=True, wait=False)
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


def _acquire(file: int, shared: bool, wait: bool, on_wait: Callable[[], None]) -> bool:
    try:
        _lock(file, shared=shared, wait=False)
    except BlockingIOError:
        if not wait:
            return False

        on_wait()
        _lock(file, shared=shared, wait=True)

    return True


def _lock(file: int, *, shared: bool, wait: bool) -> None:
    """Lock an open file. Raise BlockingIOError unless `wait` if it is held, or OSError."""
    if sys.platform != "win32":
        kind = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
        fcntl.flock(file, kind if wait else kind | fcntl.LOCK_NB)
        return

    while not _lock_bytes(file, shared):
        if not wait:
            raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))

        time.sleep(_RETRY_SECONDS)


def _lock_bytes(file: int, shared: bool) -> bool:
    """Lock an open file on Windows. Return False if it is held."""
    position = os.lseek(file, 0, os.SEEK_CUR)
    first = random.randrange(_BYTES) if shared else 0
    os.lseek(file, _FIRST_BYTE + first, os.SEEK_SET)
    try:
        if sys.platform == "win32":
            msvcrt.locking(file, msvcrt.LK_NBLCK, 1 if shared else _BYTES)
    except PermissionError:
        return False
    finally:
        os.lseek(file, position, os.SEEK_SET)

    return True
