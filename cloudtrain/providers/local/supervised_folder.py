"""A run's folder for its supervisor: it may be removed during the run, or its disk be full."""

from __future__ import annotations

import errno
import os
import shutil
import sys
import time
from contextlib import suppress
from pathlib import Path

from cloudtrain.errors import CloudtrainError
from cloudtrain.runs.folder import RunFolder
from cloudtrain.runs.logs import format_timestamp
from cloudtrain.runs.record import PLAN
from cloudtrain_launcher.events import Event

REMOVED_CHECKS = 3
"""Number of checks in a row without the folder until it counts as removed."""


class SupervisedFolder(RunFolder):
    """The folder that exists when this is created."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._stat = path.stat()
        self._missed_checks = 0

    def exists(self) -> bool:
        """Return True if the same folder still exists."""
        try:
            return os.path.samestat(self.path.stat(), self._stat)
        except OSError as error:  # a temporary failure of the disk has removed nothing
            return error.errno not in (errno.ENOENT, errno.ENOTDIR, errno.ESTALE)

    def is_found_removed(self) -> bool:
        """Look for the folder; return True if it counts as removed now."""
        self._missed_checks = 0 if self.exists() else self._missed_checks + 1
        return self._is_removed

    def remove_what_was_recreated(self) -> None:
        """Remove what the job wrote after its folder was removed, unless it is a new run's."""
        if not (self.path / PLAN).exists():
            shutil.rmtree(self.path, ignore_errors=True)

    def record(self, *events: Event, durable: bool = False) -> bool:
        """Store events; return False if the disk refuses them. `durable`: flush them to disk."""
        if self._is_removed:  # the folder must not be created again
            return True
        try:
            self.append(*events, durable=durable)
        except CloudtrainError as error:
            log(f"events lost: {error.message}")
            return False
        return True

    @property
    def _is_removed(self) -> bool:
        return self._missed_checks >= REMOVED_CHECKS


def log(text: str) -> None:
    """Write a line to the supervisor's own log, which may be on a full disk."""
    with suppress(OSError):
        print(f"{format_timestamp(time.time())} {text}", file=sys.stderr, flush=True)
