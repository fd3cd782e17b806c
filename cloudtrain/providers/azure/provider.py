"""The azure provider: run a plan as an Azure ML command job.

Planning imports its modules when they are called: watching a run needs no pydantic.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cloudtrain.errors import UsageError
from cloudtrain.providers.azure import logs, request, results, status, stop, submit
from cloudtrain.providers.azure.config import config_of
from cloudtrain.providers.azure.declaration import DECLARATION
from cloudtrain.providers.protocol import Provider

if TYPE_CHECKING:
    from collections.abc import Iterable

    from cloudtrain.checkup import Check
    from cloudtrain.errors import Issue
    from cloudtrain.planning.plan import Plan
    from cloudtrain.planning.target import Target
    from cloudtrain.providers.discovered_run import DiscoveredRun, KnownRuns
    from cloudtrain.providers.infrastructure import Infrastructure
    from cloudtrain.providers.native_sweep import NativeSweeps
    from cloudtrain.runs.folder import RunFolder
    from cloudtrain.settings import Settings
    from cloudtrain.spec.model import JobSpec


class AzureMLProvider(Provider):
    """Azure ML command jobs."""

    declaration = DECLARATION
    render = staticmethod(request.render)
    export = staticmethod(request.export)
    start = staticmethod(submit.start)
    observe = staticmethod(status.observe)
    stop = staticmethod(stop.stop)
    publish = staticmethod(results.publish)
    artifacts = staticmethod(results.artifacts)
    checkpoints = staticmethod(results.checkpoints)
    native = staticmethod(results.native)
    remote_folder = staticmethod(results.remote_folder)
    fetch = staticmethod(results.fetch)
    backfill_logs = staticmethod(logs.backfill_logs)

    def target(self, settings: Settings, spec: JobSpec, *, rehearsal: bool = False) -> Target:
        """Return workspace, machines, image and cost of a job; problems are in the target."""
        from cloudtrain.providers.azure.target import target

        return target(settings, spec, rehearsal=rehearsal)

    def rules(self, plan: Plan) -> list[Issue]:
        """Return broken rules of Azure ML."""
        from cloudtrain.providers.azure.rules import rule_issues

        return rule_issues(plan)

    def checks(self, plan: Plan, *, starting: bool) -> list[Issue]:  # noqa: ARG002  (no program is started)
        """Return an issue if azure-ai-ml is missing."""
        from cloudtrain.providers.azure.rules import sdk_issues

        return sdk_issues(plan)

    def security_findings(self, plan: Plan) -> Iterable[Issue]:
        """Return the findings of a security review of the request."""
        from cloudtrain.providers.azure.rules import security_findings

        return security_findings(plan)

    def checkup(self, plan: Plan) -> Iterable[Check]:
        """Ask the workspace for everything that a job of this spec needs."""
        from cloudtrain.providers.azure.checkup import account_checks

        return account_checks(plan)

    def repository(self, settings: Settings) -> str:
        """Return the repository of the settings."""
        from cloudtrain.providers.azure.image import image_repository

        return image_repository(settings)

    def poll_seconds(self, run: RunFolder) -> float:
        """Return the pause from the run's plan, in seconds."""
        return config_of(run).poll

    def discover_runs(
        self, settings: Settings, run_id: str | None, known_runs: KnownRuns
    ) -> list[DiscoveredRun]:
        """List new or changed jobs that cloudtrain started from any machine."""
        from cloudtrain.providers.azure.discover import discover_runs

        return discover_runs(settings, run_id, known_runs)

    def infrastructure(self, settings: Settings, name: str, region: str) -> Infrastructure:
        """Return the ARM template and the deployment of that name."""
        from cloudtrain.providers.azure.infrastructure import AzureInfrastructure

        if region:
            hint = "the deployment itself says where it is"
            raise UsageError("--region is for aws", hint=hint)
        return AzureInfrastructure(settings, name)

    def native_sweeps(self) -> NativeSweeps:
        """Return Azure ML's sweep jobs."""
        from cloudtrain.providers.azure.sweep import AzureSweeps

        return AzureSweeps()


PROVIDER = AzureMLProvider
"""Class that `get_provider` creates."""
