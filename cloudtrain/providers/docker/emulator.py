"""A run in containers of this machine: one per node, on a network of their own; each watched by a process of ours."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from hashlib import sha256
from pathlib import Path
from typing import Any

from cloudtrain.contracts.launch import PACKAGES_DIR, Launch
from cloudtrain.providers.aws.declaration import DECLARATION as AWS
from cloudtrain.providers.azure.declaration import DECLARATION as AZURE
from cloudtrain.providers.docker import gpus
from cloudtrain.providers.docker.cleanup import cleanup_marker, labels_of, remove_containers
from cloudtrain.providers.docker.config import DockerConfig
from cloudtrain.providers.docker.connect import docker_engine
from cloudtrain.providers.docker.container_spec import (
    DATA_LABEL,
    NODE_LABEL,
    ROOT_CAPABILITIES,
    ULIMITS,
    Bind,
    ContainerLaunch,
    ContainerSpec,
)
from cloudtrain.providers.emulation.base import Emulator
from cloudtrain.providers.emulation.plan import EmulatedPlan
from cloudtrain.providers.emulation.run_paths import RunPaths
from cloudtrain.providers.local.processes import run_module

PACKAGES = "/cloudtrain-packages"
"""Where a container finds the packages that earlier runs with its image have installed."""

SECRET = "CLOUDTRAIN_SECRET_"  # noqa: S105
"""Before the name of a secret in the environment of the process that hands it to a container."""


def docker_emulator(paths: RunPaths, request: Mapping[str, Any], plan: EmulatedPlan) -> DockerEmulator:
    """The emulator of a run's request, by its contract."""
    contract = plan.contract
    if contract == AWS.contract:
        from cloudtrain.providers.docker.mounts import SageMakerContainers

        # SageMaker's containers reach the internet unless the request says otherwise.
        isolated = request.get("EnableNetworkIsolation", False)
        return DockerEmulator(SageMakerContainers(paths, request, plan), paths, plan, isolated)
    if contract == AZURE.contract:
        from cloudtrain.providers.docker.mounts import AzureMLContainers

        return DockerEmulator(AzureMLContainers(paths, request, plan), paths, plan)
    from cloudtrain.providers.docker.mounts import PlainContainers

    return DockerEmulator(PlainContainers(paths, request), paths, plan)


class DockerEmulator:
    """Whatever the contract's own emulator says is to be started, started in containers."""

    nodes_on_host = False

    def __init__(
        self, inner: Emulator[ContainerLaunch], paths: RunPaths, plan: EmulatedPlan, isolated: bool = False
    ) -> None:
        self.inner, self.paths, self.isolated = inner, paths, isolated
        self.image, self.config = plan.image, plan.host_config(DockerConfig)
        # Of a rehearsal, the machine that its request names decides.
        self.gpus_per_node = self.config.gpus if plan.gpus is None else plan.gpus
        self.max_runtime_seconds, self.grace_seconds = inner.max_runtime_seconds, inner.grace_seconds
        self.labels = labels_of(paths.run)
        digest = sha256(self.labels[DATA_LABEL].encode()).hexdigest()[:6]
        self.network = f"cloudtrain-{paths.run.name}-{digest}"
        self.gpus: tuple[str, ...] = ()
        """Those of all nodes, in their order."""
        self._gpu_locks = ExitStack()
        self._packages: tuple[Bind, ...] = ()
        """Where the job's packages are kept, if it asks for any."""

    def inherits(self, variable: str) -> bool:
        """What the process beside the container sees, such as DOCKER_HOST; the container sees nothing of it."""
        return not variable.startswith("CLOUDTRAIN_")

    def prepare(self, archive: Path) -> Sequence[Launch]:
        """Folders, the network, and for each node a process that starts its container."""
        launches = self.inner.prepare(archive)
        self.gpus = self._take_gpus(launches)
        self._packages = self._packages_folder()
        mark = cleanup_marker(self.paths.run)
        mark.parent.mkdir(exist_ok=True)
        mark.touch()
        with docker_engine() as engine:
            _, rootless = engine.machine()
            engine.make_network(self.network, self.labels, internal=self.isolated)
        return [self._container_launch(launch, rootless) for launch in launches]

    def sync(self) -> None:
        """As the contract does."""
        self.inner.sync()

    def clean_up(self) -> None:
        """Containers outlive the processes that watch them, where those were killed; the network outlives them all."""
        try:
            remove_containers(self.paths.run)
        finally:
            self._gpu_locks.close()

    def collect(self) -> list[str]:
        """As the contract does."""
        return self.inner.collect()

    def spec(self, launch: ContainerLaunch, rootless: bool = False) -> ContainerSpec:
        """One node's container."""
        node, config = launch.node, self.config
        first = node * self.gpus_per_node
        return ContainerSpec(
            node=node,
            image=self.image,
            name=f"{self.network}-{launch.host}",
            host=launch.host,
            network=self.network,
            argv=launch.argv,
            folder=launch.cwd,
            env={**launch.env, **({PACKAGES_DIR: PACKAGES} if self._packages else {})},
            secrets=tuple(launch.secrets),
            binds=(*launch.binds, *self._packages),
            labels={**self.labels, NODE_LABEL: str(node)},
            grace_seconds=self.grace_seconds,
            shm_bytes=config.shm_bytes,
            memory_bytes=config.memory_bytes,
            gpus=self.gpus[first : first + self.gpus_per_node],
            **_user_and_capabilities(rootless, gpus=self.gpus_per_node > 0),
        )

    def _packages_folder(self) -> tuple[Bind, ...]:
        """The folder of this image's packages; it is made here, since Docker would make it as root."""
        if not json.loads(self.paths.job_file.read_text()).get("dependencies"):
            return ()
        folder = self.paths.packages_in(self.image)
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        return (Bind(source=str(folder), target=PACKAGES),)

    def _take_gpus(self, launches: Sequence[Launch]) -> tuple[str, ...]:
        wanted = self.gpus_per_node * len(launches)
        if not wanted:
            return ()
        visible = gpus.visible_gpus(gpus.chosen(launches[0].env))
        return gpus.take(visible, wanted, self._gpu_locks, shared=self.config.share_gpus)

    def _container_launch(self, launch: ContainerLaunch, rootless: bool) -> Launch:
        file = self.paths.run / "nodes" / str(launch.node) / "container.json"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(self.spec(launch, rootless).to_json(), indent=2))
        return Launch(
            node=launch.node,
            argv=(*run_module("docker.node"), str(file)),
            cwd=str(self.paths.run),
            env={},
            secrets={f"{SECRET}{name}": place for name, place in launch.secrets.items()},
        )


def _user_and_capabilities(rootless: bool, *, gpus: bool) -> dict[str, Any]:
    """As whom a container runs and what it may do: what the person may, and no more.

    A rootless engine's root is the person, so files are theirs in any case; but it can pass on neither their groups nor
    higher limits than their own.
    """
    if rootless:
        return {"user": "0:0", "capabilities": ROOT_CAPABILITIES}
    groups = tuple(str(group) for group in sorted(set(os.getgroups()) - {os.getgid()}))
    capabilities = ROOT_CAPABILITIES if os.getuid() == 0 else ()
    user = f"{os.getuid()}:{os.getgid()}"
    return {"user": user, "groups": groups, "capabilities": capabilities, "ulimits": ULIMITS if gpus else {}}
