"""Disks without locks: flock(2) fails in this process, or in all Pythons that are started."""

from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path
from typing import NoReturn

import pytest

ERRORS = {name: getattr(errno, name) for name in ("ENOLCK", "ENOSYS", "EOPNOTSUPP", "EINVAL")}
"""What flock(2) fails with on a disk without locks, by name."""

_SITE = """
import errno, fcntl, os
def refuse(*_):
    raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))
fcntl.flock = fcntl.lockf = refuse
"""


def refuse_locks(monkeypatch: pytest.MonkeyPatch, code: int = errno.ENOLCK) -> None:
    """Make this process see disks without locks."""

    def refuse(*_: object) -> NoReturn:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(fcntl, "flock", refuse)
    monkeypatch.setattr(fcntl, "lockf", refuse)


def lockless_python(folder: Path) -> dict[str, str]:
    """Variables that make each Python process see disks without locks. `folder`: any empty one."""
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(_SITE)
    return {"PYTHONPATH": str(folder)}
