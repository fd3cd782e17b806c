"""Runs in a data folder: create one, or find one by its id."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from cloudtrain.errors import RunNotFound, StorageError
from cloudtrain.issues import did_you_mean
from cloudtrain.runs.files import (
    DATA_DIR_HINT,
    make_private_folder,
    new_folder,
    restrict_permissions,
)
from cloudtrain.runs.folder import SUBMIT_LOCK, RunFolder
from cloudtrain.runs.record import RunRecord
from cloudtrain_launcher.file_locks import FileLock, acquire
from cloudtrain_launcher.packages.bounded_files import read_regular_file
from cloudtrain_launcher.process_identity import ProcessIdentity

if TYPE_CHECKING:
    from cloudtrain_launcher.events import Event

MAX_INDEX_BYTES = 1 << 28
"""Limit of the index: lines of about a million runs."""

CLEANUP_FOLDER = "leftovers"
"""Folder with one entry per run that may have left something outside its own folder."""


class RunStore:
    """Runs of one data folder."""

    def __init__(self, data_dir: Path) -> None:
        self.data_dir = data_dir
        self.runs_dir = data_dir / "runs"

    def create(
        self,
        run_id: str,
        documents: Mapping[str, str],
        first_event: Event | None = None,
        submit_lock: list[FileLock] | None = None,
    ) -> RunFolder:
        """Create a run folder with these documents (text by name) and its first event, atomically.

        Append the lock of the submission to `submit_lock`, held from the creation of the folder
        until its release. Raise RunExists if the id is taken, StorageError if the disk refuses.
        """
        folder = RunFolder(self.runs_dir / run_id)
        with new_folder(folder.path, documents, "run") as draft:
            restrict_permissions(self.data_dir)
            make_private_folder(draft / "logs")
            if submit_lock is not None:
                lock = acquire(draft / SUBMIT_LOCK)
                assert lock is not None  # noqa: S101  (the draft is private)
                submit_lock.append(lock)
                os.write(lock.file, json.dumps(ProcessIdentity.of(os.getpid()).to_json()).encode())
            if first_event is not None:
                RunFolder(draft).append(first_event, durable=True)
            self._drop_from_index(run_id)
        return folder

    def _drop_from_index(self, run_id: str) -> None:
        """Delete the index if it lists a removed run of that id. It is written again later."""
        index = self.data_dir / "index.jsonl"
        with suppress(OSError):
            content = read_regular_file(index, MAX_INDEX_BYTES)
            is_listed = f'"run":"{run_id}"'.encode() in content
            if is_listed and not (self.runs_dir / run_id).exists():
                index.unlink()

    def ids(self) -> list[str]:
        """Return all run ids, unordered. Raise StorageError if the folder cannot be read."""
        restrict_permissions(self.data_dir)
        try:
            with os.scandir(self.runs_dir) as entries:
                return [
                    entry.name
                    for entry in entries
                    if not entry.name.startswith(".") and entry.is_dir()
                ]
        except FileNotFoundError:
            return []
        except OSError as error:
            raise StorageError(f"{self.runs_dir}: {error.strerror}", hint=DATA_DIR_HINT) from None

    def runs_to_clean_up(self) -> frozenset[str]:
        """Return ids of runs whose provider may have to remove something; often empty."""
        try:
            return frozenset(path.name for path in (self.data_dir / CLEANUP_FOLDER).iterdir())
        except OSError:
            return frozenset()

    def open(self, name: str) -> RunFolder:
        """Return the run of that id, the only run of this machine that begins so, or the last one.

        A run of another machine needs its whole id. Raise RunNotFound otherwise.
        """
        ids = self.ids()
        if not ids:
            raise RunNotFound(
                f"there are no runs in {self.runs_dir}", hint="cloudtrain submit starts one"
            )
        if name == "last":
            mine = next(filter(self._is_own, sorted(ids, key=self._created, reverse=True)), None)
            if mine is None:
                raise RunNotFound(
                    "this machine has started no run", hint="cloudtrain list shows those of others"
                )
            return RunFolder(self.runs_dir / mine)
        fitting = (
            [name]
            if name in ids
            else sorted(run_id for run_id in ids if name and run_id.startswith(name))
        )
        matches = [run_id for run_id in fitting if run_id == name or self._is_own(run_id)]
        if len(matches) == 1:
            return RunFolder(self.runs_dir / matches[0])
        if matches:
            shown = ", ".join(matches[:5]) + (", …" if len(matches) > 5 else "")
            raise RunNotFound(
                f"{name!r} fits {len(matches)} runs: {shown}", hint="give more letters of the id"
            )
        if fitting:
            message = f"{name!r} fits runs of other machines only: {', '.join(fitting[:5])}"
            raise RunNotFound(
                message, hint="a run that this machine has not started is meant by its whole id"
            )
        raise RunNotFound(
            f"there is no run {name!r}{did_you_mean(name, ids)}",
            hint="cloudtrain list shows all runs",
        )

    def _is_own(self, run_id: str) -> bool:
        return not RunRecord(RunFolder(self.runs_dir / run_id)).is_of_another_machine

    def _created(self, run_id: str) -> float:
        # Documents are written once, by the submit; the folder's own time changes.
        try:
            return (self.runs_dir / run_id / "plan.json").stat().st_mtime_ns
        except OSError:
            return 0
