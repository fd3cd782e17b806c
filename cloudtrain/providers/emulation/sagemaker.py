"""A rehearsal as SageMaker: its request executed here, one container per node, each with its own /opt/ml."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from cloudtrain.contracts.launch import Launch
from cloudtrain.contracts.sagemaker import ROOT, training_job
from cloudtrain.errors import StorageError, UsageError
from cloudtrain.providers.aws.config import AwsConfig
from cloudtrain.providers.aws.request import JOB, RESUME, SOURCE
from cloudtrain.providers.cloud.paths import ARCHIVE
from cloudtrain.providers.emulation import container as rooms
from cloudtrain.providers.emulation.base import (
    HOST_VARIABLES,
    search_path,
    threads,
)
from cloudtrain.providers.emulation.plan import EmulatedPlan
from cloudtrain.providers.emulation.run_paths import RunPaths
from cloudtrain.providers.emulation.storage_sync import FileStates, merge, sync_folder


class SageMakerEmulator:
    """A CreateTrainingJob request, executed as SageMaker would: one container per node, each with its own /opt/ml.

    What the request says of S3 is answered by this machine: the archive at hand, local folders for inputs that have
    one, the run's own folders for checkpoints, model and output. Inputs without a local place come from S3.
    """

    nodes_on_host = True
    interface = "lo" if sys.platform == "linux" else "lo0"

    def __init__(self, paths: RunPaths, body: Mapping[str, Any], plan: EmulatedPlan) -> None:
        self.paths, self.plan = paths, plan
        self.job = training_job(body, interface=self.interface)
        self.max_runtime_seconds: int | None = self.job.max_runtime_seconds
        self.grace_seconds = self.job.grace_seconds
        self.seen: dict[Path, FileStates] = {}
        self.roots = [paths.run / "nodes" / str(container.node) / "ml" for container in self.job.containers]

    def inherits(self, variable: str) -> bool:
        """What a program needs to run on this machine at all, and AWS's own in place of the job's role.

        SageMaker's containers see nothing of the person's shell; what is missing there is to be missed here.
        """
        return variable in HOST_VARIABLES or variable.startswith(("AWS_", "LC_"))

    def prepare(self, archive: Path) -> Sequence[Launch]:
        """The tree of each node, with its files and channels, and the command that enters it."""
        places = {SOURCE: self._source(archive), **self.places()}
        addresses, private = rooms.addresses(len(self.roots)), rooms.is_private()
        hosts = self.paths.run / "hosts"
        hosts.write_text(rooms.hosts_text(self.job.hosts, addresses))
        machine = {"PATH": search_path(self.plan.python), **threads(self.paths, self.plan.cores)}
        launches = []
        for container, root, address in zip(self.job.containers, self.roots, addresses, strict=True):
            rooms.build(self.job, container, root, places)
            argv, env = rooms.command(
                container, root, hosts_file=hosts, address=address, master=addresses[0], private=private
            )
            env, secrets = {**machine, **env}, self.plan.local_secrets()
            launches.append(Launch(node=container.node, argv=argv, cwd=str(root), env=env, secrets=secrets))
        return launches

    def sync(self) -> None:
        """Checkpoints are uploaded as they come, from every node to one place."""
        for root in self.roots:
            sync_folder(root / self.job.checkpoints, self.paths.checkpoints, self.seen.setdefault(root, {}))

    def clean_up(self) -> None:
        """Nothing: all that a node starts is a process that carries the run's mark."""

    def collect(self) -> list[str]:
        """All nodes' model folders become one, and so do their output folders."""
        self.sync()
        said: list[str] = []
        for folder, into in (("model", self.paths.model), ("output/data", self.paths.output)):
            for name in merge([root / folder for root in self.roots], into, f"{ROOT}/{folder}", said.append):
                said.append(f"several nodes wrote {folder}/{name}, each something else: node 0's comes first")
        return said

    def places(self) -> dict[str, Path]:
        """Where the content of each channel lies on this machine, but for the source's."""
        places = {JOB: self.paths.job_file}
        for channel in self.job.channels:
            if channel.name not in (SOURCE, JOB):
                resume = self.plan.resume_from
                given = resume if channel.name == RESUME else self.plan.local_input(channel.name)
                places[channel.name] = self._downloaded(channel.name, given or channel.uri)
        return places

    def _source(self, archive: Path) -> Path:
        source = self.paths.run / "inputs" / SOURCE
        source.mkdir(parents=True, exist_ok=True)
        if not (source / ARCHIVE).exists():
            (source / ARCHIVE).symlink_to(archive)
        return source

    def _downloaded(self, name: str, place: str) -> Path:
        if not place.startswith("s3://"):
            return Path(place).resolve()
        from cloudtrain.providers.aws.results import download_folder

        try:
            from cloudtrain.providers.aws.client import aws
        except ImportError as error:
            raise UsageError(f"input {name}: {place} cannot be read without boto3: {error}") from None

        folder = self.paths.run / "inputs" / name
        if not download_folder(aws(self.plan.target_config(AwsConfig).region), place, folder, None):
            raise StorageError(f"input {name}: there is nothing at {place}")
        return folder
