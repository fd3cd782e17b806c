"""A run under the plain contract: the nodes are launchers that share the run's own folders."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from cloudtrain.contracts.launch import Launch
from cloudtrain.providers.emulation.run_paths import RunPaths
from cloudtrain.source.results import copy_results


class PlainEmulator:
    """The plain contract: the nodes share the run's own folders, so there is nothing to keep or to collect."""

    nodes_on_host = True

    def __init__(self, paths: RunPaths, request: Mapping[str, Any]) -> None:
        self.paths, self.request = paths, request
        self.max_runtime_seconds = request["max_runtime_seconds"]
        self.grace_seconds = request["grace_seconds"]

    def inherits(self, variable: str) -> bool:
        """All but our own: the job runs as the person would run it."""
        return not variable.startswith("CLOUDTRAIN_")

    def prepare(self, archive: Path) -> Sequence[Launch]:
        """The request's own launches."""
        self.lay_out(archive)
        return [Launch.from_json(launch) for launch in self.request["launches"]]

    def lay_out(self, archive: Path) -> None:
        """A copy of the source for each node; the checkpoints of the run that this one goes on from."""
        from cloudtrain.source import unpack

        if self.request["resume_from"]:
            _copy_checkpoints(Path(self.request["resume_from"]), self.paths.checkpoints)
        for launch in self.request["launches"]:
            unpack(archive, self.paths.source(launch["node"]))

    def sync(self) -> None:
        """Nothing: they write where it stays."""

    def clean_up(self) -> None:
        """Nothing: all that a node starts is a process that carries the run's mark."""

    def collect(self) -> list[str]:
        """Nothing: they wrote where people look."""
        return []


def _copy_checkpoints(earlier: Path, into: Path) -> None:
    if earlier.is_dir():
        copy_results(earlier, into, (), print)  # into the supervisor's own log
