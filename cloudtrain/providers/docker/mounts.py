"""What each contract promises a container: the same emulators as for processes, with mounts in place of links."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from cloudtrain.contracts.sagemaker import ROOT
from cloudtrain.errors import StorageError
from cloudtrain.providers.aws.request import SOURCE
from cloudtrain.providers.cloud.paths import ARCHIVE
from cloudtrain.providers.docker.container_spec import Bind, ContainerLaunch, host_names
from cloudtrain.providers.emulation import container as container_emulator
from cloudtrain.providers.emulation.azureml import REHEARSAL_VARIABLES, AzureMLEmulator
from cloudtrain.providers.emulation.base import thread_variables
from cloudtrain.providers.emulation.plain import PlainEmulator
from cloudtrain.providers.emulation.sagemaker import SageMakerEmulator

INTERFACE = "eth0"
"""What Docker calls a container's way to its network."""

MOUNTS = "/mnt/azureml"
"""Below it lie, in a rehearsal as Azure ML, the working folder, the inputs and the outputs."""


class PlainContainers(PlainEmulator):
    """The plain contract: what each node sees of the run's own folders is in the request."""

    nodes_on_host = False

    def prepare(self, archive: Path) -> Sequence[ContainerLaunch]:
        """The request's own launches."""
        self.copy_source(archive)
        return [ContainerLaunch.from_json(launch) for launch in self.request["launches"]]


class SageMakerContainers(SageMakerEmulator):
    """Each node has its own /opt/ml; its channels are mounted there, read-only."""

    nodes_on_host = False
    interface = INTERFACE

    def prepare(self, archive: Path) -> Sequence[ContainerLaunch]:
        """The tree of each node, and what is mounted into it."""
        places, share = {SOURCE: archive, **self.channel_paths()}, thread_variables(self.paths, self.plan.cores)
        launches = []
        for container, root in zip(self.job.containers, self.roots, strict=True):
            container_emulator.create_folders(self.job, container, root, {})
            binds = [Bind(source=str(root), target=ROOT)]
            for channel in self.job.channels:
                if place := places.get(channel.name):
                    name = ARCHIVE if channel.name == SOURCE else place.name
                    inside = channel.folder if place.is_dir() else f"{channel.folder}/{name}"
                    binds.append(_read_only(place, root / inside, f"{ROOT}/{inside}"))
            launch = ContainerLaunch(
                node=container.node,
                argv=container.argv,
                cwd=ROOT,
                env={**share, **container.env},
                secrets=self.plan.local_secrets(),
                host=container.host,
                binds=tuple(binds),
            )
            launches.append(launch)
        return launches


class AzureMLContainers(AzureMLEmulator):
    """Each node has a working folder of its own; inputs are mounted read-only, outputs are the run's own folders."""

    nodes_on_host = False

    def names(self, nodes: int) -> tuple[str, ...]:
        """Host names of the run's own network."""
        return host_names(nodes)

    def prepare(self, archive: Path) -> Sequence[ContainerLaunch]:
        """The working folder of each node, and what is mounted beside it."""
        inside: dict[str, str] = {}
        shared: list[Bind] = []
        launches = []
        for name, place in self.mount_paths().items():
            kind, _, own = name.partition(".")
            inside[name] = f"{MOUNTS}/{kind}/{own}" + ("" if place.is_dir() else f"/{place.name}")
            shared.append(Bind(source=str(place), target=inside[name], read_only=kind == "inputs"))
        argv, share = ("/bin/sh", "-c", self.job.command_line(inside)), thread_variables(self.paths, self.plan.cores)
        for process in self.job.processes:
            folder, host = self.working_folder(process.node), self.addresses[process.node]
            code = _read_only(archive, folder / ARCHIVE, f"{MOUNTS}/wd/{ARCHIVE}")
            launch = ContainerLaunch(
                node=process.node,
                argv=argv,
                cwd=f"{MOUNTS}/wd",
                env={**share, **process.env, **REHEARSAL_VARIABLES, "CLOUDTRAIN_NODE_ADDR": host},
                secrets=self.plan.local_secrets(),
                host=host,
                binds=(Bind(source=str(folder), target=f"{MOUNTS}/wd"), code, *shared),
            )
            launches.append(launch)
        return launches


def _read_only(place: Path, here: Path, target: str) -> Bind:
    """A folder or file to be seen at `target`, which is `here` on this machine: Docker would make it there as root."""
    if not place.exists():
        raise StorageError(f"there is nothing at {place}, which the job is to find at {target}")
    if not place.is_dir():
        here.parent.mkdir(parents=True, exist_ok=True)
        here.touch()
    return Bind(source=str(place), target=target, read_only=True)
