"""Locks on files are taken by one module, which refuses disks without them."""

from __future__ import annotations

import re

from tests.repo.tools import ROOT

LOCKING = re.compile(r"fcntl\.(?!ioctl\b)|from fcntl")


def test_no_other_module_locks_files() -> None:
    paths = [path for top in ("cloudtrain", "entrypoints") for path in (ROOT / top).rglob("*.py")]
    locking = [
        path.relative_to(ROOT).as_posix() for path in paths if LOCKING.search(path.read_text())
    ]
    assert locking == ["entrypoints/cloudtrain_launcher/file_locks.py"]
