"""Who may write a file or folder: what others may write is not taken for this user's own.

As ssh does: the owner is this user or root, and neither the group nor others may write.
"""

from __future__ import annotations

import os
import stat
import sys
from contextlib import suppress
from pathlib import Path

ROOT = 0
"""User id of the machine's administrator."""


def why_not_private(place: Path) -> str:
    """Return why others may change a file, or what is in a folder; "" if they may not, or without it.

    A folder like /tmp, where each keeps what is their own, is fine: look at what is in it, too.
    The access lists of Windows are not read: there each file counts as private.
    """
    if sys.platform == "win32":
        return ""

    try:
        status = os.stat(place)  # noqa: PTH116  (faster)
    except OSError:  # who opens it reports that
        return ""

    if not _is_mine(place, status.st_uid):
        return f"belongs to {_user_name(status.st_uid)}"
    if stat.S_ISDIR(status.st_mode) and status.st_mode & stat.S_ISVTX:
        return ""

    return _written_by_others(status)


def why_not_roots(file: Path) -> str:
    """Return why others than root may change a file; "" if they may not, or without it."""
    if sys.platform == "win32" and file.exists():
        return "is on Windows, whose access lists are not read"

    for place in (file, file.parent):
        try:
            status = os.stat(place)  # noqa: PTH116  (faster)
        except OSError:
            continue
        if status.st_uid != ROOT:
            return f"belongs to {_user_name(status.st_uid)}"
        if reason := _written_by_others(status):
            return reason

    return ""


def is_mine(file: Path) -> bool:
    """Return whether a file belongs to this user or to root."""
    try:
        return _is_mine(file.parent, os.stat(file).st_uid)  # noqa: PTH116  (faster)
    except OSError:
        return False


def _written_by_others(status: os.stat_result) -> str:
    if status.st_mode & stat.S_IWOTH:
        return "may be written by everybody"
    if status.st_mode & stat.S_IWGRP:
        return "may be written by its group"

    return ""


def _is_mine(place: Path, owner: int) -> bool:
    if sys.platform == "win32":
        return True
    if owner in (os.geteuid(), 0):
        return True
    if os.geteuid() == 0 and str(owner) == os.environ.get("SUDO_UID"):
        return True

    import tempfile  # rarely needed, and slow to import

    # Some network disks give all files of this user one other owner, as they do with root's.
    try:
        with tempfile.TemporaryFile(dir=place) as probe:
            return os.fstat(probe.fileno()).st_uid == owner
    except OSError:
        return False


def _user_name(number: int) -> str:
    if sys.platform != "win32":
        from pwd import getpwuid  # rarely needed

        with suppress(KeyError):
            return getpwuid(number).pw_name

    return f"user {number}"
