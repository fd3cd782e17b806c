"""How a run is staged on this machine, by contract: what is laid out first, what is started, what is kept."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from cloudtrain.local.folders import RunPaths
from cloudtrain.runs.store import RunFolder

Launches = list[Mapping[str, Any]]
"""One per node: node, argv, cwd, env, secrets."""


class Stage(Protocol):
    """One run's request, made ready to be executed here."""

    max_runtime_seconds: int | None
    grace_seconds: int

    def inherits(self, variable: str) -> bool:
        """Whether the job sees this variable of the person's own environment."""
        ...

    def prepare(self, archive: Path) -> Launches:
        """Lay everything out, and say what is to be started."""
        ...

    def keep(self) -> None:
        """Called now and then while it runs: what must survive even if this machine dies."""
        ...

    def collect(self) -> list[str]:
        """Called once, when all is over: bring what the nodes left to where people look. What is to be said of it."""
        ...


def stage_of(run: RunFolder) -> Stage:
    """The stage for a run's request."""
    paths, request, plan = RunPaths(run.path), run.document("request.json"), run.document("plan.json")
    contract = plan["target"]["contract"]
    if contract == "sagemaker":
        from cloudtrain.local.sagemaker_stage import SageMakerStage

        return SageMakerStage(paths, request, plan)
    if contract == "azureml":
        from cloudtrain.local.azureml_stage import AzureMLStage

        return AzureMLStage(paths, request, plan)
    return PlainStage(paths, request)


class PlainStage:
    """The plain contract: the nodes share the run's own folders, so there is nothing to keep or to collect."""

    def __init__(self, paths: RunPaths, request: Mapping[str, Any]) -> None:
        self.paths, self.request = paths, request
        self.max_runtime_seconds = request["max_runtime_seconds"]
        self.grace_seconds = request["grace_seconds"]

    def inherits(self, variable: str) -> bool:
        """All but our own: the job runs as the person would run it."""
        return not variable.startswith("CLOUDTRAIN_")

    def prepare(self, archive: Path) -> Launches:
        """A copy of the source for each node; the checkpoints of the run that this one goes on from."""
        from cloudtrain.source import unpack

        if self.request["resume_from"]:
            _copy_checkpoints(Path(self.request["resume_from"]), self.paths.checkpoints)
        for launch in self.request["launches"]:
            unpack(archive, Path(launch["cwd"]))
        return list(self.request["launches"])

    def keep(self) -> None:
        """Nothing: they write where it stays."""

    def collect(self) -> list[str]:
        """Nothing: they wrote where people look."""
        return []


OF_THE_MACHINE = {
    *("PATH", "HOME", "USER", "LANG", "TMPDIR", "TZ", "LD_LIBRARY_PATH", "CUDA_VISIBLE_DEVICES"),
    *("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "PYTHONDONTWRITEBYTECODE"),
}
"""Variables that a program needs to run on this machine at all, whatever contract it runs under."""


def search_path(plan: Mapping[str, Any]) -> str:
    """The PATH of a rehearsal: the chosen Python comes first, as it is the image that is not there."""
    return f"{Path(plan['host']['facts']['python']).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"


def local_secrets(plan: Mapping[str, Any]) -> dict[str, str]:
    """Where this machine has the secrets that the spec says a local place for."""
    secrets: Mapping[str, Mapping[str, str]] = plan["spec"].get("secrets", {})
    return {name: places["local"] for name, places in secrets.items() if "local" in places}


def local_input(plan: Mapping[str, Any], name: str) -> str:
    """Where this machine has an input, by the spec; empty when it says nothing of it."""
    place: str = plan["spec"]["inputs"][name]["uri"].get("local", "")
    return str(Path(plan["facts"]["folder"]) / Path(place).expanduser()) if place else ""


def _copy_checkpoints(earlier: Path, into: Path) -> None:
    if earlier.is_dir():
        shutil.copytree(earlier, into, symlinks=True, dirs_exist_ok=True)
