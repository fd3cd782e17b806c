"""Execute a request in containers of this machine, one per node on a separate network.

Mounts take the place of the links of a rehearsal without containers. Containers that a dead
run left behind are removed.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from hashlib import sha256
from pathlib import Path
from typing import Any

from cloudtrain.errors import CloudtrainError, StorageError
from cloudtrain.planning.launch import PACKAGES_DIR, PUBLISHED, Launch
from cloudtrain.planning.sagemaker import ROOT
from cloudtrain.providers.aws.declaration import DECLARATION as AWS
from cloudtrain.providers.aws.request import SOURCE
from cloudtrain.providers.azure.declaration import DECLARATION as AZURE
from cloudtrain.providers.docker.connect import docker_engine
from cloudtrain.providers.docker.container_spec import (
    DATA_LABEL,
    NODE_LABEL,
    ROOT_CAPABILITIES,
    RUN_LABEL,
    SECRET,
    ULIMITS,
    Bind,
    ContainerLaunch,
    ContainerSpec,
    DockerConfig,
    host_names,
    take,
)
from cloudtrain.providers.local import machine
from cloudtrain.providers.local.backend import ORPHAN_STOP_SECONDS
from cloudtrain.providers.local.processes import (
    SupervisorState,
    end_orphans,
    run_module,
    supervisor_state,
)
from cloudtrain.providers.rehearsal.azureml import REHEARSAL_VARIABLES, AzureMLEmulator
from cloudtrain.providers.rehearsal.base import (
    EmulatedPlan,
    Emulator,
    PlainEmulator,
    thread_variables,
)
from cloudtrain.providers.rehearsal.sagemaker import SageMakerEmulator, create_folders
from cloudtrain.providers.shared.paths import ARCHIVE
from cloudtrain.runs.paths import RunPaths
from cloudtrain.runs.store import CLEANUP_MARKS

PACKAGES = "/cloudtrain-packages"
"""Folder in a container with packages of earlier runs of its image."""

PUBLISHED_FOLDER = "/cloudtrain-published"
"""Folder in a container with files that the client publishes for its job."""

INTERFACE = "eth0"
"""Docker's name for a container's network interface."""

MOUNTS = "/mnt/azureml"
"""Folder with the working folder, inputs and outputs of an Azure ML rehearsal."""

_WITHOUT_SUPERVISOR = (SupervisorState.DEAD, SupervisorState.NOT_STARTED)


def docker_emulator(
    paths: RunPaths,
    request: Mapping[str, Any],
    plan: EmulatedPlan,
) -> DockerEmulator:
    """Return the emulator for the contract of a run's request."""
    contract = plan.contract
    if contract == AWS.contract:
        # SageMaker's containers have internet access unless the request isolates them.
        isolated = request.get("EnableNetworkIsolation", False)
        return DockerEmulator(SageMakerContainers(paths, request, plan), paths, plan, isolated)
    if contract == AZURE.contract:
        return DockerEmulator(AzureMLContainers(paths, request, plan), paths, plan)

    return DockerEmulator(PlainContainers(paths, request), paths, plan)


class DockerEmulator:
    """Runs the launches of a contract's emulator in containers."""

    nodes_on_host = False

    def __init__(
        self,
        inner: Emulator[ContainerLaunch],
        paths: RunPaths,
        plan: EmulatedPlan,
        isolated: bool = False,
    ) -> None:
        self.inner = inner
        self.paths = paths
        self.isolated = isolated
        self.image = plan.image
        self.config = DockerConfig.from_json(plan.host_settings)
        # In a rehearsal, the machine that the request names decides.
        self.gpus_per_node = self.config.gpus if plan.gpus is None else plan.gpus
        self.max_runtime_seconds = inner.max_runtime_seconds
        self.grace_seconds = inner.grace_seconds
        self.labels = labels_of(paths.run)
        digest = sha256(os.fsencode(self.labels[DATA_LABEL])).hexdigest()[:6]
        self.network = f"cloudtrain-{paths.run.name}-{digest}"
        self.gpus: tuple[str, ...] = ()
        """UUIDs of the GPUs of all nodes, in the order of the nodes."""
        self.gpu_locks = ExitStack()
        """Holds these GPUs for the run until `clean_up`."""
        self._packages: tuple[Bind, ...] = ()
        """Mounts of the job's packages, if it needs any."""

    def inherits(self, variable: str) -> bool:
        """Return True if the process that watches a container gets this variable.

        It needs DOCKER_HOST, for example. Containers get no variables this way.
        """
        return not variable.startswith("CLOUDTRAIN_")

    def prepare(self, archive: Path) -> Sequence[Launch]:
        """Create folders and network; return the process that starts each node's container.

        Raise CloudError if GPUs are in use or the engine does not answer.
        """
        launches = self.inner.prepare(archive)
        self.gpus = self.take_gpus(launches)
        self._packages = self._packages_folder()
        marker = cleanup_marker(self.paths.run)
        marker.parent.mkdir(exist_ok=True)
        marker.touch()

        with docker_engine() as engine:
            rootless = engine.info().is_rootless
            engine.make_network(self.network, self.labels, internal=self.isolated)

        return [self._container_launch(launch, rootless) for launch in launches]

    def sync(self) -> None:
        """Upload what the contract uploads while the job runs."""
        self.inner.sync()

    def clean_up(self) -> None:
        """Remove the network and the containers, which outlive the processes that watch them."""
        try:
            remove_containers(self.paths.run)
        finally:
            self.gpu_locks.close()

    def collect(self) -> list[str]:
        """Store what the contract stores at the end; return warnings."""
        return self.inner.collect()

    def spec(self, launch: ContainerLaunch, rootless: bool = False) -> ContainerSpec:
        """Return the container of one node. `rootless`: whether the engine runs without root."""
        node = launch.node
        config = self.config
        first = node * self.gpus_per_node
        published = self.paths.published
        env = dict(launch.env)
        binds = list(launch.binds + self._packages)
        if self._packages:
            env[PACKAGES_DIR] = PACKAGES
        if published.is_dir():
            env[PUBLISHED] = PUBLISHED_FOLDER
            binds.append(Bind(source=str(published), target=PUBLISHED_FOLDER, read_only=True))

        return ContainerSpec(
            node=node,
            image=self.image,
            name=f"{self.network}-{launch.host}",
            host=launch.host,
            network=self.network,
            argv=launch.argv,
            folder=launch.cwd,
            env=env,
            secrets=tuple(launch.secrets),
            binds=tuple(binds),
            labels={**self.labels, NODE_LABEL: str(node)},
            grace_seconds=self.grace_seconds,
            shm_bytes=config.shm_bytes,
            memory_bytes=config.memory_bytes,
            gpus=self.gpus[first : first + self.gpus_per_node],
            **_user_and_capabilities(rootless, gpus=self.gpus_per_node > 0),
        )

    def _packages_folder(self) -> tuple[Bind, ...]:
        """Return the mount of this image's packages.

        The folder is created here: Docker would create it as root.
        """
        if not json.loads(self.paths.job_file.read_text()).get("dependencies"):
            return ()

        folder = self.paths.packages_in(self.image)
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        return (Bind(source=str(folder), target=PACKAGES),)

    def take_gpus(self, launches: Sequence[Launch]) -> tuple[str, ...]:
        """Lock GPUs for all nodes and return their UUIDs. Raise CloudError if too few are free."""
        count = self.gpus_per_node * len(launches)
        if not count:
            return ()
        visible = machine.visible_gpus(launches[0].env)
        return take(visible, count, self.gpu_locks)

    def _container_launch(self, launch: ContainerLaunch, rootless: bool) -> Launch:
        file = self.paths.run / "nodes" / str(launch.node) / "container.json"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(self.spec(launch, rootless).to_json(), indent=2))

        return Launch(
            node=launch.node,
            argv=(*run_module("docker.node"), str(file)),
            cwd=str(self.paths.run),
            env={},
            secrets={f"{SECRET}{name}": location for name, location in launch.secrets.items()},
        )


def _user_and_capabilities(rootless: bool, *, gpus: bool) -> dict[str, Any]:
    """Return user and capabilities of a container: only the rights of the user.

    The root of a rootless engine is the user, so that files belong to them anyway; but such an
    engine can neither pass on their groups nor raise limits.
    """
    if rootless:
        return {"user": "0:0", "capabilities": ROOT_CAPABILITIES}

    groups = tuple(str(group) for group in sorted(set(os.getgroups()) - {os.getgid()}))
    capabilities = ROOT_CAPABILITIES if os.getuid() == 0 else ()
    user = f"{os.getuid()}:{os.getgid()}"
    return {
        "user": user,
        "groups": groups,
        "capabilities": capabilities,
        "ulimits": ULIMITS if gpus else {},
    }


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
            create_folders(self.job, container, root, {})
            binds = [Bind(source=str(root), target=ROOT)]
            for channel in self.job.channels:
                if source := sources.get(channel.name):
                    name = ARCHIVE if channel.name == SOURCE else source.name
                    if source.is_dir():
                        inside = channel.folder
                    else:
                        inside = f"{channel.folder}/{name}"

                    binds.append(_read_only(source, root / inside, f"{ROOT}/{inside}"))
            env = dict(threads)
            env.update(container.env)
            launch = ContainerLaunch(
                node=container.node,
                argv=container.argv,
                cwd=ROOT,
                env=env,
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
            inside[name] = f"{MOUNTS}/{kind}/{mount_name}"
            if not path.is_dir():
                inside[name] += f"/{path.name}"

            shared.append(Bind(source=str(path), target=inside[name], read_only=kind == "inputs"))

        argv = ("/bin/sh", "-c", self.job.command_line(inside))
        threads = thread_variables(self.paths, self.plan.cores)
        for process in self.job.processes:
            folder = self.working_folder(process.node)
            host = self.addresses[process.node]
            code = _read_only(archive, folder / ARCHIVE, f"{MOUNTS}/wd/{ARCHIVE}")
            env = dict(threads)
            env.update(process.env)
            env.update(REHEARSAL_VARIABLES)
            env["CLOUDTRAIN_NODE_ADDR"] = host
            launch = ContainerLaunch(
                node=process.node,
                argv=argv,
                cwd=f"{MOUNTS}/wd",
                env=env,
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


def remove_leftovers(run: Path) -> str:
    """Remove a run's containers and networks; return a note, also without an engine."""
    try:
        count = remove_containers(run)
    except CloudtrainError as error:
        return f"its containers could not be looked for: {error.message}"
    if count > 1:
        return f"{count} containers that were left have been removed"
    if count:
        return "a container that was left has been removed"

    return ""


def clean_up_ended_run(run: Path) -> None:
    """Remove what an ended run has left because the engine was unreachable at its end."""
    if cleanup_marker(run).exists() and supervisor_state(run) in _WITHOUT_SUPERVISOR:
        remove_leftovers(run)


def clean_up_dead_runs(data_dir: Path) -> None:
    """Remove containers and networks of all runs of a data folder whose supervisor is dead."""
    with docker_engine() as engine:
        for run_id in sorted(engine.labelled({DATA_LABEL: str(data_dir)}, RUN_LABEL)):
            run = data_dir / "runs" / run_id
            if supervisor_state(run) in _WITHOUT_SUPERVISOR:
                end_orphans(run, ORPHAN_STOP_SECONDS)
                remove_containers(run)


def remove_containers(run: Path) -> int:
    """Remove a run's containers and networks; return the number of containers.

    Raise CloudtrainError if that fails.
    """
    with docker_engine() as engine:
        count = engine.clear(labels_of(run))

    cleanup_marker(run).unlink(missing_ok=True)
    return count


def cleanup_marker(run: Path) -> Path:
    """Return a file that exists while the engine may have containers or networks of the run."""
    return run.parents[1] / CLEANUP_MARKS / run.name


def labels_of(run: Path) -> dict[str, str]:
    """Return labels of a run's containers and networks, unique across data folders."""
    return {RUN_LABEL: run.name, DATA_LABEL: str(run.parents[1])}
