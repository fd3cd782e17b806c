"""Emulate the plain contract: unpack the source; the nodes are launchers that share the run's folders."""

from __future__ import annotations

import gzip
import os
import shutil
import tarfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from cloudtrain.errors import SourceError, StorageError
from cloudtrain.planning.launch import Launch
from cloudtrain.providers.rehearsal.run_paths import RunPaths
from cloudtrain.runs.files import FOLDER_MODE, make_private_folder
from cloudtrain.source.extract import DAMAGED, Header
from cloudtrain.source.results import copy_results


class PlainEmulator:
    """The plain contract: the nodes share the run's folders, without sync or collection."""

    nodes_on_host = True

    def __init__(self, paths: RunPaths, request: Mapping[str, Any]) -> None:
        self.paths = paths
        self.request = request
        self.max_runtime_seconds = request["max_runtime_seconds"]
        self.grace_seconds = request["grace_seconds"]

    def inherits(self, variable: str) -> bool:
        """Pass on all variables but ours: the job runs as the user would run it."""
        return not variable.startswith("CLOUDTRAIN_")

    def prepare(self, archive: Path) -> Sequence[Launch]:
        """Return the request's own launches."""
        self.copy_source(archive)
        return [Launch.from_json(launch) for launch in self.request["launches"]]

    def copy_source(self, archive: Path) -> None:
        """Copy the source for each node, and the checkpoints of the run that this one resumes."""
        if self.request["resume_from"]:
            _copy_checkpoints(Path(self.request["resume_from"]), self.paths.checkpoints)
        for launch in self.request["launches"]:
            unpack(archive, self.paths.source(launch["node"]))

    def sync(self) -> None:
        """Do nothing: nodes write to the run's folder."""

    def clean_up(self) -> None:
        """Do nothing: the supervisor ends all processes of the run."""

    def collect(self) -> list[str]:
        """Do nothing: nodes write to the run's folder."""
        return []


def _copy_checkpoints(earlier: Path, into: Path) -> None:
    if earlier.is_dir():
        copy_results(earlier, into, (), print)  # into the supervisor's own log


_BLOCK = 1 << 20


def unpack(archive: Path, folder: Path) -> None:
    """Extract files, folders and links into `folder`, which is made, or must be empty.

    Raise SourceError if the archive is damaged or has an entry that leads outside, and StorageError
    if the disk refuses; `folder` is left empty then.
    """
    make_private_folder(folder)
    if any(folder.iterdir()):
        raise SourceError(f"cannot unpack into {folder}: it is not empty", hint="name a new folder")
    try:
        _extract(archive, folder)
    except BaseException as error:
        shutil.rmtree(folder, ignore_errors=True)
        if isinstance(error, DAMAGED):
            raise SourceError(
                f"the source archive {archive} is damaged or hostile: {error}"
            ) from error
        if isinstance(error, OSError):
            raise StorageError(
                f"cannot unpack {archive} into {folder}: {error.strerror or error}"
            ) from error
        raise


def _extract(archive: Path, folder: Path) -> None:
    with (
        gzip.open(archive) as stream,
        tarfile.open(fileobj=stream, mode="r:", tarinfo=Header) as tar,
    ):
        members = tar.getmembers()
        # The checksum is at the very end, after what tar reads.
        while stream.read(_BLOCK):
            pass
        now = time.time()
        for member in members:
            member.mtime = now
        # Python before 3.11.4 lacks the filter.
        tar.extraction_filter = getattr(tarfile, "data_filter", None)
        tar.extractall(folder, members)
    for parent, _, _ in os.walk(folder):  # the filter leaves folders to the umask
        Path(parent).chmod(FOLDER_MODE)
