"""Emulators of the contracts for containers: mounts take the place of links."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from cloudtrain.errors import StorageError
from cloudtrain.planning.sagemaker import ROOT
from cloudtrain.providers.aws.request import SOURCE
from cloudtrain.providers.docker.container_spec import Bind, ContainerLaunch, host_names
from cloudtrain.providers.rehearsal import container as container_emulator
from cloudtrain.providers.rehearsal.azureml import REHEARSAL_VARIABLES, AzureMLEmulator
from cloudtrain.providers.rehearsal.base import thread_variables
from cloudtrain.providers.rehearsal.plain import PlainEmulator
from cloudtrain.providers.rehearsal.sagemaker import SageMakerEmulator
from cloudtrain.providers.shared.paths import ARCHIVE

INTERFACE = "eth0"
"""Docker's name for a container's network interface."""

MOUNTS = "/mnt/azureml"
"""Folder with the working folder, inputs and outputs of an Azure ML rehearsal."""


class PlainContainers(PlainEmulator):
    """The plain contract: the request has the mounts of each node."""

    nodes_on_host = False

    def prepare(self, archive: Path) -> Sequence[ContainerLaunch]:
        """Extract the source; return the launches of the request."""
        self.copy_source(archive)
        return [ContainerLaunch.from_json(launch) for launch in self.request["launches"]]


class SageMakerContainers(SageMakerEmulator):
    """Each node has a private /opt/ml; its channels are mounted there, read-only."""

    nodes_on_host = False
    interface = INTERFACE

    def prepare(self, archive: Path) -> Sequence[ContainerLaunch]:
        """Create the folders of each node; return launches with mounts. May raise StorageError."""
        sources = {SOURCE: archive, **self.channel_paths()}
        threads = thread_variables(self.paths, self.plan.cores)
        launches = []
        for container, root in zip(self.job.containers, self.roots, strict=True):
            container_emulator.create_folders(self.job, container, root, {})
            binds = [Bind(source=str(root), target=ROOT)]
            for channel in self.job.channels:
                if source := sources.get(channel.name):
                    name = ARCHIVE if channel.name == SOURCE else source.name
                    inside = channel.folder if source.is_dir() else f"{channel.folder}/{name}"
                    binds.append(_read_only(source, root / inside, f"{ROOT}/{inside}"))
            launch = ContainerLaunch(
                node=container.node,
                argv=container.argv,
                cwd=ROOT,
                env={**threads, **container.env},
                secrets=self.plan.local_secrets(),
                host=container.host,
                binds=tuple(binds),
            )
            launches.append(launch)
        return launches


class AzureMLContainers(AzureMLEmulator):
    """Each node has a working folder; inputs are mounted read-only, outputs are shared."""

    nodes_on_host = False

    def names(self, nodes: int) -> tuple[str, ...]:
        """Return host names of the run's network."""
        return host_names(nodes)

    def prepare(self, archive: Path) -> Sequence[ContainerLaunch]:
        """Create the nodes' working folders; return launches with mounts. May raise StorageError."""
        inside: dict[str, str] = {}
        shared: list[Bind] = []
        launches = []
        for name, path in self.mount_paths().items():
            kind, _, mount_name = name.partition(".")
            inside[name] = f"{MOUNTS}/{kind}/{mount_name}" + (
                "" if path.is_dir() else f"/{path.name}"
            )
            shared.append(Bind(source=str(path), target=inside[name], read_only=kind == "inputs"))
        argv = ("/bin/sh", "-c", self.job.command_line(inside))
        threads = thread_variables(self.paths, self.plan.cores)
        for process in self.job.processes:
            folder = self.working_folder(process.node)
            host = self.addresses[process.node]
            code = _read_only(archive, folder / ARCHIVE, f"{MOUNTS}/wd/{ARCHIVE}")
            launch = ContainerLaunch(
                node=process.node,
                argv=argv,
                cwd=f"{MOUNTS}/wd",
                env={**threads, **process.env, **REHEARSAL_VARIABLES, "CLOUDTRAIN_NODE_ADDR": host},
                secrets=self.plan.local_secrets(),
                host=host,
                binds=(Bind(source=str(folder), target=f"{MOUNTS}/wd"), code, *shared),
            )
            launches.append(launch)
        return launches


def _read_only(path: Path, mount_point: Path, target: str) -> Bind:
    """Return the mount of a folder or file at `target`; `mount_point` is its local path.

    The mount point of a file is created here, because Docker would create it as root.
    """
    if not path.exists():
        raise StorageError(f"{path} does not exist, and the job needs it at {target}")
    if not path.is_dir():
        mount_point.parent.mkdir(parents=True, exist_ok=True)
        mount_point.touch()
    return Bind(source=str(path), target=target, read_only=True)
