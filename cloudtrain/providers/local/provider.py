"""The local provider: nodes are launchers on this machine, under a supervisor."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cloudtrain.planning.launch import Layout, Request, launches
from cloudtrain.planning.plan import Plan
from cloudtrain.planning.target import Target
from cloudtrain.providers.aws.declaration import DECLARATION as AWS
from cloudtrain.providers.azure.declaration import DECLARATION as AZURE
from cloudtrain.providers.local.backend import (
    UNUSED,
    LocalBackend,
    gpus_of,
    require_unix,
    resolve_path,
)
from cloudtrain.providers.local.config import LocalConfig
from cloudtrain.providers.local.declaration import DECLARATION
from cloudtrain.runs.paths import RunPaths
from cloudtrain.settings import Settings
from cloudtrain_wire.cores import available_cores

if TYPE_CHECKING:  # watching a run does not need pydantic
    from cloudtrain.checkup import Check
    from cloudtrain.errors import Issue
    from cloudtrain.planning.launch import Launch
    from cloudtrain.planning.registry import ResolvedImage
    from cloudtrain.providers.rehearsal.base import EmulatedPlan, Emulator
    from cloudtrain.spec.model import JobSpec


class LocalProvider(LocalBackend):
    """Runs jobs as processes of this machine, under the plain contract or a cloud's."""

    declaration = DECLARATION
    name = DECLARATION.name

    def target(self, settings: Settings, spec: JobSpec, *, rehearsal: bool = False) -> Target:  # noqa: ARG002
        """Return this machine, with the job's Python and the number of cores."""
        require_unix()
        gpus, problems = gpus_of(spec)
        return Target(
            provider=self.name,
            where="this machine",
            max_nodes=99,
            grace_seconds=settings["stop_grace"],
            unused=UNUSED,
            config=LocalConfig(
                python=settings.get("python") or sys.executable,
                cores=available_cores(),
                system=sys.platform,
            ),
            gpus=gpus,
            problems=problems,
        )

    def rules(self, plan: Plan) -> list[Issue]:
        """Return problems found on the disk and in the environment."""
        from cloudtrain.providers.local.checks import host_rules

        return host_rules(plan)

    def checks(self, plan: Plan, *, starting: bool) -> list[Issue]:  # noqa: ARG002  (our own program)
        """Return problems that need a process, such as the number of GPUs."""
        from cloudtrain.providers.local.checks import host_checks

        return host_checks(plan)

    def checkup(self, plan: Plan) -> Iterable[Check]:
        """Ask this machine for everything that a job of this spec needs."""
        from cloudtrain.providers.local.checkup import machine_checks

        return machine_checks(plan)

    def emulator(
        self,
        paths: RunPaths,
        request: Mapping[str, Any],
        plan: EmulatedPlan,
    ) -> Emulator[Launch]:
        """Return the emulator of the request's contract, with a process per node."""
        if plan.contract == AWS.contract:
            from cloudtrain.providers.rehearsal.sagemaker import SageMakerEmulator

            return SageMakerEmulator(paths, request, plan)

        if plan.contract == AZURE.contract:
            from cloudtrain.providers.rehearsal.azureml import AzureMLEmulator

            return AzureMLEmulator(paths, request, plan)

        from cloudtrain.providers.rehearsal.base import PlainEmulator

        return PlainEmulator(paths, request)

    def render(self, plan: Plan, image: ResolvedImage | None = None) -> Request:  # noqa: ARG002
        """Return the launches, one per node, with all paths of the run."""
        spec = plan.spec
        config = plan.target.config_as(LocalConfig)
        paths = RunPaths(Path(plan.context.data_dir) / "runs" / plan.run_id)
        layout = Layout(
            python=config.python,
            job_file=str(paths.job_file),
            source=str(paths.source("{node}")),
            output=str(paths.output),
            model=str(paths.model),
            checkpoints=str(paths.checkpoints),
            inputs={name: resolve_path(plan, place) for name, place in plan.inputs.items()},
            packages=str(paths.packages),
            published=str(paths.published),
        )
        nodes = spec.resources.nodes
        per_node = plan.processes
        linux = config.system == "linux"
        addresses = ("127.0.0.1",) * nodes
        if linux and nodes > 1:
            # Linux answers on all of 127/8: separate addresses keep the nodes apart, and in order.
            addresses = tuple(f"127.0.0.{101 + node}" for node in range(nodes))

        node_launches = launches(
            plan,
            layout,
            addresses=addresses,
            interface="lo" if linux else "lo0",
            threads=max(1, config.cores // (nodes * per_node * plan.context.trials_at_once)),
        )
        return self._request(plan, node_launches)


PROVIDER = LocalProvider
"""Class that `get_provider` creates."""
