"""Locks on files, where a disk has them: some network disks refuse them, others keep them to one machine in silence."""

from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path

_NOT_OFFERED = {errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOTSUP, errno.EINVAL}
"""What flock(2) says on a disk that has no locks, NFS without its lock service among them."""


def take(file: int, *, wait: bool = True) -> bool:
    """Lock an open file until it is closed; False, with `wait=False`, when another holds it.

    A disk without locks is done without: True. OSError where the disk itself fails.
    """
    try:
        fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in _NOT_OFFERED:
            raise
    return True


def is_held(path: Path) -> bool | None:
    """Whether somebody holds the lock of a file. None when that cannot be told: no such file, or no such locks.

    False is not the whole truth on a network disk that keeps locks to one machine.
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
