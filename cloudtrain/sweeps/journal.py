"""Files of a sweep: `sweep.json` and `spec.yaml`, which are fixed, and `journal.jsonl`."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from cloudtrain.errors import StorageError, UsageError
from cloudtrain.runs.files import (
    append_lines,
    as_text,
    new_folder,
    read_lines,
    storing,
    strict_json,
)
from cloudtrain.runs.store import SWEEPS
from cloudtrain.sweeps.definition import Definition
from cloudtrain.sweeps.events import SweepEvent, parse
from cloudtrain_launcher.file_locks import acquire, is_locked
from cloudtrain_launcher.packages.bounded_files import open_regular_file, read_regular_file
from cloudtrain_launcher.process_identity import ProcessIdentity

SWEEP = "sweep.json"
JOURNAL = "journal.jsonl"
DRIVER_LOCK = "driver.lock"
RAY_DASHBOARD = "ray-dashboard"
"""File with the address of Ray's dashboard, if a cluster was started for the sweep."""


class SweepFolder:
    """One sweep on disk."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.sweep_id = path.name

    @staticmethod
    def create(data_dir: Path, definition: Definition, documents: Mapping[str, str]) -> SweepFolder:
        """Create the folder of a sweep, complete or not at all.

        `documents`: `spec.yaml` and `plan.json` of the job without values of a trial, by name.
        Raise RunExists if the id is taken, StorageError if writing fails.
        """
        folder = SweepFolder(data_dir / SWEEPS / definition.sweep_id)
        with new_folder(folder.path, {SWEEP: as_text(definition.to_json()), **documents}, "sweep"):
            pass
        return folder

    def definition(self) -> Definition:
        """Return the definition. Raise StorageError if it cannot be read."""
        try:
            return Definition.from_json(json.loads(read_regular_file(self.path / SWEEP)))
        except (OSError, ValueError, TypeError, KeyError, RecursionError) as error:
            raise self._damaged(f"{SWEEP} cannot be read: {error}") from None

    def append(self, *events: SweepEvent) -> None:
        """Append events and flush them to the disk. Raise StorageError if that fails."""
        lines = "".join(
            strict_json(event.to_json(), separators=(",", ":")) + "\n" for event in events
        )
        append_lines(self.path / JOURNAL, lines, durable=True)

    def events_from(self, offset: int = 0) -> Iterator[tuple[SweepEvent | None, int]]:
        """Yield events from a byte offset, each with the offset after it.

        An invalid line gives None. Raise StorageError if the journal cannot be read.
        """
        try:
            with open_regular_file(self.path / JOURNAL) as file:
                for line, behind in read_lines(file, offset):
                    yield parse(line) if line else None, behind
        except FileNotFoundError:
            return
        except OSError as error:
            raise self._damaged(f"{JOURNAL} cannot be read: {error.strerror or error}") from None

    def is_driven(self) -> bool:
        """Return True if a process drives the sweep."""
        return bool(is_locked(self.path / DRIVER_LOCK))

    @contextmanager
    def driving(self) -> Iterator[None]:
        """Hold the lock of the driver of the sweep; the kernel releases it if the process dies.

        Raise UsageError if another process holds it.
        """
        with storing(self.path):
            lock = acquire(self.path / DRIVER_LOCK, wait=False)
        if lock is None:
            hint = f"cloudtrain attach {self.sweep_id} watches it"
            raise UsageError(
                f"sweep {self.sweep_id} is driven by another process already", hint=hint
            )
        try:
            with storing(self.path):
                os.ftruncate(lock.file, 0)
                os.write(lock.file, json.dumps(ProcessIdentity.of(os.getpid()).to_json()).encode())
            yield
        finally:
            lock.release()

    def _damaged(self, problem: str) -> StorageError:
        return StorageError(
            f"sweep {self.sweep_id}: {problem}",
            hint="its folder was changed by hand, or its disk failed",
        )
