"""Emulate the plain contract: the nodes are launchers that share the run's folders."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from cloudtrain.planning.launch import Launch
from cloudtrain.providers.rehearsal.run_paths import RunPaths
from cloudtrain.source.results import copy_results
from cloudtrain.source.unpack import unpack


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
