"""The docker provider: N nodes are N containers on a network of this machine, watched by the same supervisor."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cloudtrain.contracts.plain import CLOUD_FIELDS, Layout, launches, plain_job
from cloudtrain.issues import Issue
from cloudtrain.planning.plan import Plan
from cloudtrain.planning.target import Target
from cloudtrain.providers import Progress, Request
from cloudtrain.providers.docker.config import DockerConfig
from cloudtrain.providers.docker.container_spec import Bind, ContainerLaunch, default_shm_bytes, host_names
from cloudtrain.providers.docker.declaration import DECLARATION
from cloudtrain.providers.emulation.run_paths import RunPaths
from cloudtrain.providers.local.backend import LocalBackend, resolve_path
from cloudtrain.runs.folder import RunFolder
from cloudtrain.runs.observation import Observation, Record
from cloudtrain.runs.state import RunState
from cloudtrain.settings import Settings

if TYPE_CHECKING:  # looking after a run needs no pydantic
    from cloudtrain.contracts.launch import Launch
    from cloudtrain.images.reference import ResolvedImage
    from cloudtrain.providers.emulation.base import Emulator
    from cloudtrain.providers.emulation.plan import EmulatedPlan
    from cloudtrain.spec.model import JobSpec

CONTAINER_ROOT = "/cloudtrain"
"""Below it lies, in the container, all that is the run's."""

MASTER_PORT = 29500
"""Each run has a network of its own, where every port is free."""


class DockerProvider(LocalBackend):
    """This machine's Docker engine, under the plain contract."""

    declaration = DECLARATION
    name = DECLARATION.name
    container_root = CONTAINER_ROOT

    def target(self, settings: Settings, spec: JobSpec, *, rehearsal: bool = False) -> Target:  # noqa: ARG002
        """The image, and what a container of it may use."""
        from cloudtrain.providers.docker.image import image_of

        image, problems = image_of(spec.image, settings, gpu=bool(spec.resources.gpus))
        return Target(
            provider=self.name,
            where="this machine, in containers",
            max_nodes=99,
            grace_seconds=settings["stop_grace"],
            unused=CLOUD_FIELDS,
            config=DockerConfig(
                cores=os.cpu_count() or 1,
                gpus=spec.resources.gpus or 0,
                shm_bytes=spec.resources.shm or _shm_bytes(settings, spec),
                memory_bytes=settings.get("docker.memory"),
                share_gpus=settings.get("docker.share_gpus") or False,
            ),
            image=image,
            problems=problems,
        )

    def rules(self, plan: Plan) -> list[Issue]:
        """Whether this machine can run the plan: GPUs, inputs, secrets."""
        from cloudtrain.providers.docker.checks import container_rules

        return [*super().rules(plan), *container_rules(plan)]

    def checks(self, plan: Plan, *, starting: bool) -> list[Issue]:  # noqa: ARG002  (it starts no program)
        """Whether the engine answers and has the image; GPUs."""
        from cloudtrain.providers.docker.checks import container_checks

        return container_checks(plan)

    def emulator(self, paths: RunPaths, request: Mapping[str, Any], plan: EmulatedPlan) -> Emulator[Launch]:
        """What executes a request under the contract that it is for, in containers."""
        from cloudtrain.providers.docker.emulator import docker_emulator

        return docker_emulator(paths, request, plan)

    def render(self, plan: Plan, image: ResolvedImage | None = None) -> Request:
        """The containers, one per node: what each starts, sees and may use."""
        spec, config = plan.spec, plan.target.config_as(DockerConfig)
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
        found = launches(
            plan,
            layout,
            addresses=hosts,
            interface="eth0",
            threads=max(1, config.cores // (nodes * plan.processes)),
        )
        seen = [(resolve_path(plan, plan.inputs[name]), target) for name, target in layout.inputs.items()]
        shared = [Bind(source=place, target=target, read_only=True) for place, target in seen]
        job = plain_job(plan)
        document = {
            "run_id": plan.run_id,
            "job": job.to_json(),
            "source": plan.context.source.digest,
            "image": image.address if image else plan.target.image_address,
            "shm_bytes": config.shm_bytes,
            "memory_bytes": config.memory_bytes,
            "launches": [
                ContainerLaunch(
                    node=launch.node,
                    argv=launch.argv,
                    cwd=launch.cwd,
                    env={**launch.env, "CLOUDTRAIN_MASTER_PORT": str(MASTER_PORT)},
                    secrets=launch.secrets,
                    host=hosts[launch.node],
                    binds=(*_run_binds(plan, launch.node, layout), *shared),
                ).to_json()
                for launch in found
            ],
            "max_runtime_seconds": spec.limits.max_runtime,
            "grace_seconds": plan.target.grace_seconds,
            "resume_from": plan.context.resume_from or None,
        }
        return Request(provider=self.name, document=document, job=job)

    def start(
        self, plan: Plan, request: Request, run: RunFolder, archive: Path, progress: Progress | None, record: Record
    ) -> dict[str, Any]:
        """Start the supervisor, once nothing is left of runs whose own was killed."""
        from cloudtrain.providers.docker.cleanup import clean_up_dead_runs

        clean_up_dead_runs(run.path.parents[1])
        return super().start(plan, request, run, archive, progress, record)

    def observe(self, run: RunFolder, state: RunState) -> Iterable[Observation]:
        """As for every run on this machine; of an ended one, what the engine still has is removed."""
        if state.has_ended:
            from cloudtrain.providers.docker.cleanup import clean_up_ended_run

            clean_up_ended_run(run.path)
        return super().observe(run, state)

    def end_orphans(self, run: Path) -> str:
        """Processes first: they stop their containers themselves, with a checkpoint. Then what they have left."""
        from cloudtrain.providers.docker.cleanup import remove_leftovers

        return "; ".join(part for part in (super().end_orphans(run), remove_leftovers(run)) if part)


def _shm_bytes(settings: Settings, spec: JobSpec) -> int:
    """By the node's processes and its share of the memory."""
    memory = settings.get("docker.memory") or host_memory_bytes() // spec.resources.nodes
    return default_shm_bytes(spec.resources.processes_on(spec.resources.gpus or 0), memory)


def host_memory_bytes() -> int:
    """Bytes of memory of this machine; where it does not say, 8 GiB."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError):
        return 2**33


def _run_binds(plan: Plan, node: int, layout: Layout) -> list[Bind]:
    """What of the run folder a node sees."""
    paths = RunPaths(Path(plan.context.data_dir) / "runs" / plan.run_id)
    places: Mapping[str, Path] = {
        layout.source: paths.source(node),
        layout.output: paths.output,
        layout.model: paths.model,
        layout.checkpoints: paths.checkpoints,
    }
    binds = [Bind(source=str(place), target=target) for target, place in places.items()]
    return [*binds, Bind(source=str(paths.job_file), target=layout.job_file, read_only=True)]


def _input_path(name: str, place: str, plan: Plan) -> str:
    """Where an input is in the container; a single file keeps its own name."""
    folder = f"{CONTAINER_ROOT}/inputs/{name}"
    return f"{folder}/{Path(resolve_path(plan, place)).name}" if name in plan.context.local_files else folder


PROVIDER = DockerProvider
"""What `get_provider` creates."""
