"""A file that requests a stop, on a disk that nodes share. Standard library only."""

from __future__ import annotations

import itertools
import os
import threading
import time
from contextlib import suppress
from pathlib import Path

STOP_FILE_POLL_SECONDS = 1.0

LISTING_INTERVAL = 10
"""Polls per listing of the folder: a mount may cache the absence of a file."""

READ_TIMEOUT_SECONDS = 5.0
"""Maximum wait of `StopFile.check` for a mount."""


class StopFile:
    """A file on a mount, polled in threads, since a mount may hang.

    The file is never removed: a restarted node must stop too.
    """

    def __init__(self, path: str) -> None:
        self._path = Path(path)
        self._ignored = ""
        self.content = ""
        """Return the file's first 64 characters, `there` if it is empty, '' if it is missing."""

    def check(self) -> None:
        """Read the file now; a mount slower than `READ_TIMEOUT_SECONDS` counts as no file."""
        thread = threading.Thread(target=self._check, args=(True,), daemon=True, name="stop file")
        thread.start()
        thread.join(READ_TIMEOUT_SECONDS)

    def ignore_existing(self) -> None:
        """Read the file now, and ignore its present content from here on."""
        self.check()
        self._ignored = self.content
        self.content = ""

    def watch(self) -> None:
        """Start polling, every `STOP_FILE_POLL_SECONDS`."""
        threading.Thread(target=self._watch, daemon=True, name="stop file").start()

    def write(self, text: str) -> None:
        """Create the file for other readers; ignore errors."""
        threading.Thread(target=self._write, args=(text,), daemon=True, name="stop file").start()

    def _watch(self) -> None:
        for count in itertools.count(1):
            time.sleep(STOP_FILE_POLL_SECONDS)
            self._check(count % LISTING_INTERVAL == 0)
            if self.content:
                return

    def _check(self, list_folder: bool) -> None:
        with suppress(OSError):  # a mount's error is not a stop request
            if os.path.lexists(self._path) or (
                list_folder and self._path in self._path.parent.iterdir()
            ):
                content = self._read() or "there"
                self.content = content if content != self._ignored else ""

    def _read(self) -> str:
        try:
            with self._path.open("rb") as file:
                return file.read(64).decode("ascii", "replace").strip()
        except OSError:
            return ""

    def _write(self, text: str) -> None:
        temporary = self._path.with_name(f"{self._path.name}.{os.getpid()}")
        with suppress(OSError):
            temporary.write_text(text, encoding="ascii")
            temporary.replace(self._path)  # atomic, so that no reader sees a partial file
