"""How a run is staged on this machine, by contract: what is laid out first, what is started, what is kept."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from cloudtrain.errors import StorageError, UsageError
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
    plan = run.document("plan.json")
    kinds: dict[str, type[PlainStage] | type[SageMakerStage]] = {"plain": PlainStage, "sagemaker": SageMakerStage}
    return kinds[plan["target"]["contract"]](RunPaths(run.path), run.document("request.json"), plan)


class PlainStage:
    """The plain contract: the nodes share the run's own folders, so there is nothing to keep or to collect."""

    def __init__(self, paths: RunPaths, request: Mapping[str, Any], plan: Mapping[str, Any]) -> None:  # noqa: ARG002
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


class SageMakerStage:
    """A CreateTrainingJob request, executed as SageMaker would: one container per node, each with its own /opt/ml.

    What the request says of S3 is answered by this machine: the archive at hand, local folders for inputs that have
    one, the run's own folders for checkpoints, model and output. Inputs without a local place come from S3.
    """

    def __init__(self, paths: RunPaths, body: Mapping[str, Any], plan: Mapping[str, Any]) -> None:
        from cloudtrain.contracts.sagemaker import training_job

        self.paths, self.plan = paths, plan
        self.job = training_job(body, interface="lo" if sys.platform == "linux" else "lo0")
        self.max_runtime_seconds: int | None = self.job.max_runtime_seconds
        self.grace_seconds = self.job.grace_seconds
        self.roots = [paths.run / "nodes" / str(container.node) / "ml" for container in self.job.containers]

    def inherits(self, variable: str) -> bool:
        """What a program needs to run on this machine at all, and AWS's own in place of the job's role.

        SageMaker's containers see nothing of the person's shell; what is missing there is to be missed here.
        """
        return variable in _OF_THE_MACHINE or variable.startswith(("AWS_", "LC_"))

    def prepare(self, archive: Path) -> Launches:
        """The tree of each node, with its files and channels, and the command that enters it."""
        from cloudtrain.local import container as rooms

        places = self._places(archive)
        addresses, private = rooms.addresses(len(self.roots)), rooms.is_private()
        hosts = self.paths.run / "hosts"
        hosts.write_text(rooms.hosts_text(self.job.hosts, addresses))
        python = Path(self.plan["host"]["facts"]["python"])
        launches: Launches = []
        for container, root, address in zip(self.job.containers, self.roots, addresses, strict=True):
            rooms.build(self.job, container, root, places)
            argv, env = rooms.command(
                container, root, hosts_file=hosts, address=address, master=addresses[0], private=private
            )
            path = f"{python.parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
            secrets = {name: given["local"] for name, given in self._spec("secrets").items() if "local" in given}
            launches.append(
                {
                    "node": container.node,
                    "argv": argv,
                    "cwd": str(root),
                    "env": {"PATH": path, **env},
                    "secrets": secrets,
                }
            )
        return launches

    def keep(self) -> None:
        """Checkpoints are uploaded as they come, from every node to one place."""
        from cloudtrain.local.keeping import sync

        for root in self.roots:
            sync(root / self.job.checkpoints, self.paths.checkpoints)

    def collect(self) -> list[str]:
        """All nodes' model folders become one, and so do their output folders."""
        from cloudtrain.local.keeping import merge

        self.keep()
        said = []
        for folder, into in (("model", self.paths.model), ("output/data", self.paths.output)):
            for name in merge([root / folder for root in self.roots], into):
                said.append(f"several nodes wrote {folder}/{name}, each something else: node 0's comes first")
        return said

    def _places(self, archive: Path) -> dict[str, Path]:
        from cloudtrain.aws.request import ARCHIVE, JOB, RESUME, SOURCE

        source = self.paths.run / "inputs" / SOURCE
        source.mkdir(parents=True, exist_ok=True)
        if not (source / ARCHIVE).exists():
            (source / ARCHIVE).symlink_to(archive)
        places = {SOURCE: source, JOB: self.paths.job_file}
        for channel in self.job.channels:
            if channel.name not in places:
                given = self.plan["facts"]["resume_from"] if channel.name == RESUME else self._local(channel.name)
                places[channel.name] = self._brought(channel.name, given or channel.uri)
        return places

    def _local(self, name: str) -> str:
        uris = self._spec("inputs")[name]["uri"]
        place = uris.get("local", "")
        return str(Path(self.plan["facts"]["folder"]) / Path(place).expanduser()) if place else ""

    def _brought(self, name: str, place: str) -> Path:
        if not place.startswith("s3://"):
            return Path(place).resolve()
        from cloudtrain.aws.fetch import bring_folder

        try:
            from cloudtrain.clouds.aws import aws
        except ImportError as error:
            raise UsageError(f"input {name}: {place} cannot be read without boto3: {error}") from None

        folder = self.paths.run / "inputs" / name
        if not bring_folder(aws(self.plan["target"]["facts"]["region"]), place, folder, None):
            raise StorageError(f"input {name}: nothing lies at {place}")
        return folder

    def _spec(self, section: str) -> Mapping[str, Any]:
        found: Mapping[str, Any] = self.plan["spec"].get(section, {})
        return found


_OF_THE_MACHINE = {
    *("PATH", "HOME", "USER", "LANG", "TMPDIR", "TZ", "LD_LIBRARY_PATH", "CUDA_VISIBLE_DEVICES"),
    *("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "PYTHONDONTWRITEBYTECODE"),
}


def _copy_checkpoints(earlier: Path, into: Path) -> None:
    if earlier.is_dir():
        shutil.copytree(earlier, into, symlinks=True, dirs_exist_ok=True)
