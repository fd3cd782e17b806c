"""The docker provider: N nodes are N containers on a network of this machine."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cloudtrain.planning.launch import CLOUD_FIELDS, Layout, Request, launches
from cloudtrain.planning.target import Target
from cloudtrain.providers.docker.container_spec import (
    Bind,
    ContainerLaunch,
    DockerConfig,
    default_shm_bytes,
    host_names,
)
from cloudtrain.providers.docker.declaration import DECLARATION
from cloudtrain.providers.local.backend import LocalBackend, gpus_of, require_unix, resolve_path
from cloudtrain.providers.local.machine import memory_bytes
from cloudtrain.providers.progress import Progress
from cloudtrain.runs.paths import RunPaths

if TYPE_CHECKING:  # watching a run does not need pydantic
    from cloudtrain.checkup import Check
    from cloudtrain.errors import Issue
    from cloudtrain.planning.plan import Plan
    from cloudtrain.planning.registry import ResolvedImage
    from cloudtrain.providers.docker.emulator import DockerEmulator
    from cloudtrain.providers.rehearsal.base import EmulatedPlan
    from cloudtrain.runs.folder import RunFolder
    from cloudtrain.runs.logs import Observation, Record
    from cloudtrain.runs.state import RunState
    from cloudtrain.settings import Settings
    from cloudtrain.spec.model import JobSpec

CONTAINER_ROOT = "/cloudtrain"
"""Folder of the run's files in the container."""

MASTER_PORT = 29500
"""Port of the master; each run has a separate network, where every port is free."""


class DockerProvider(LocalBackend):
    """Runs jobs in containers of this machine, under the plain contract or a cloud's."""

    declaration = DECLARATION
    name = DECLARATION.name
    container_root = CONTAINER_ROOT

    def target(self, settings: Settings, spec: JobSpec, *, rehearsal: bool = False) -> Target:  # noqa: ARG002
        """Return the image and the resources of a container; problems are in the target."""
        from cloudtrain.providers.docker.checks import image_of

        require_unix()
        gpus, no_gpus = gpus_of(spec)
        image, problems = image_of(spec.image, settings, gpu=bool(gpus))
        return Target(
            provider=self.name,
            where="this machine, in containers",
            max_nodes=99,
            grace_seconds=settings["stop_grace"],
            unused=CLOUD_FIELDS,
            config=DockerConfig(
                cores=os.cpu_count() or 1,
                gpus=gpus or 0,
                shm_bytes=spec.resources.shm or _shm_bytes(settings, spec, gpus or 0),
                memory_bytes=settings.get("docker.memory"),
            ),
            image=image,
            gpus=gpus,
            problems=problems + no_gpus,
        )

    def rules(self, plan: Plan) -> list[Issue]:
        """Return problems found on the disk and in the environment, without the engine."""
        from cloudtrain.providers.docker.checks import container_rules

        return container_rules(plan)

    def checks(self, plan: Plan, *, starting: bool) -> list[Issue]:  # noqa: ARG002  (no program is started)
        """Return problems that the engine and the driver report."""
        from cloudtrain.providers.docker.checks import container_checks

        return container_checks(plan)

    def checkup(self, plan: Plan) -> Iterable[Check]:
        """Ask the container engine for everything that a job of this spec needs."""
        from cloudtrain.providers.docker.checks import engine_checks

        return engine_checks(plan)

    def emulator(
        self,
        paths: RunPaths,
        request: Mapping[str, Any],
        plan: EmulatedPlan,
    ) -> DockerEmulator:
        """Return the emulator of the request's contract, with a container per node."""
        from cloudtrain.providers.docker.emulator import docker_emulator

        return docker_emulator(paths, request, plan)

    def render(self, plan: Plan, image: ResolvedImage | None = None) -> Request:
        """Return the containers, one per node: command, mounts and resources of each."""
        spec = plan.spec
        config = plan.target.config_as(DockerConfig)
        nodes = spec.resources.nodes
        hosts = host_names(nodes)
        layout = Layout(
            python="python3",
            job_file=f"{CONTAINER_ROOT}/job.json",
            source=f"{CONTAINER_ROOT}/source",
            output=f"{CONTAINER_ROOT}/output",
            model=f"{CONTAINER_ROOT}/model",
            checkpoints=f"{CONTAINER_ROOT}/checkpoints",
            inputs={name: _input_path(name, place, plan) for name, place in plan.inputs.items()},
        )
        node_launches = launches(
            plan,
            layout,
            addresses=hosts,
            interface="eth0",
            threads=max(1, config.cores // (nodes * plan.processes)),
        )
        shared = []
        for name, target in layout.inputs.items():
            source = resolve_path(plan, plan.inputs[name])
            shared.append(Bind(source=source, target=target, read_only=True))

        containers = []
        for launch in node_launches:
            container = ContainerLaunch(
                node=launch.node,
                argv=launch.argv,
                cwd=launch.cwd,
                env={**launch.env, "CLOUDTRAIN_MASTER_PORT": str(MASTER_PORT)},
                secrets=launch.secrets,
                host=hosts[launch.node],
                binds=tuple(_run_binds(plan, launch.node, layout) + shared),
            )
            containers.append(container)

        address = image.address if image else plan.target.image_address
        return self._request(
            plan,
            containers,
            image=address,
            shm_bytes=config.shm_bytes,
            memory_bytes=config.memory_bytes,
        )

    def start(
        self,
        plan: Plan,
        request: Request,
        run: RunFolder,
        archive: Path,
        progress: Progress | None,
        record: Record,
    ) -> dict[str, Any]:
        """Start the supervisor, after removing the containers of dead supervisors."""
        from cloudtrain.providers.docker.emulator import clean_up_dead_runs

        clean_up_dead_runs(run.path.parents[1])
        return super().start(plan, request, run, archive, progress, record)

    def observe(self, run: RunFolder, state: RunState) -> Iterable[Observation]:
        """Observe it as a local run; remove container and network of an ended one."""
        if state.has_ended:
            from cloudtrain.providers.docker.emulator import clean_up_ended_run

            clean_up_ended_run(run.path)
        return super().observe(run, state)

    def end_orphans(self, run: Path) -> str:
        """End a run without a supervisor; return a note on leftovers, empty if there are none.

        Processes come first, as they stop their containers with a checkpoint; then containers and
        network.
        """
        from cloudtrain.providers.docker.emulator import remove_leftovers

        notes = (super().end_orphans(run), remove_leftovers(run))
        return "; ".join(filter(None, notes))


def _shm_bytes(settings: Settings, spec: JobSpec, gpus: int) -> int:
    """Return the shared memory of a node in bytes, by its processes and its memory."""
    memory = settings.get("docker.memory") or memory_bytes() // spec.resources.nodes
    return default_shm_bytes(spec.resources.processes_on(gpus), memory)


def _run_binds(plan: Plan, node: int, layout: Layout) -> list[Bind]:
    """Return the mounts of the run folder for one node."""
    paths = RunPaths(Path(plan.context.data_dir) / "runs" / plan.run_id)
    paths_by_target: Mapping[str, Path] = {
        layout.source: paths.source(node),
        layout.output: paths.output,
        layout.model: paths.model,
        layout.checkpoints: paths.checkpoints,
    }
    binds = [Bind(source=str(path), target=target) for target, path in paths_by_target.items()]
    binds.append(Bind(source=str(paths.job_file), target=layout.job_file, read_only=True))
    return binds


def _input_path(name: str, place: str, plan: Plan) -> str:
    """Return the path of an input in the container; a single file keeps its name."""
    folder = f"{CONTAINER_ROOT}/inputs/{name}"
    if name in plan.context.local_files:
        return f"{folder}/{Path(resolve_path(plan, place)).name}"
    return folder


PROVIDER = DockerProvider
"""Class that `get_provider` creates."""
