"""The azure provider: run a plan as an Azure ML command job.

Each method imports its module when it is called: a command loads only what it needs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cloudtrain.errors import UsageError
from cloudtrain.providers.azure.config import config_of
from cloudtrain.providers.azure.declaration import DECLARATION
from cloudtrain.providers.protocol import Provider

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path
    from typing import Any

    from cloudtrain.checkup import Check
    from cloudtrain.errors import Issue
    from cloudtrain.planning.launch import Request
    from cloudtrain.planning.plan import Plan
    from cloudtrain.planning.reference import ResolvedImage
    from cloudtrain.planning.target import Target
    from cloudtrain.providers.discovered_run import DiscoveredRun, KnownRuns
    from cloudtrain.providers.infrastructure import Infrastructure
    from cloudtrain.providers.native_sweep import NativeSweeps
    from cloudtrain.providers.progress import Note, Progress
    from cloudtrain.providers.protocol import Export
    from cloudtrain.runs.folder import RunFolder
    from cloudtrain.runs.logs import Observation, Record
    from cloudtrain.runs.state import RunState
    from cloudtrain.settings import Settings
    from cloudtrain.spec.model import JobSpec


class AzureMLProvider(Provider):
    """Azure ML command jobs."""

    declaration = DECLARATION

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

    def render(self, plan: Plan, image: ResolvedImage | None = None) -> Request:
        """Return the document of a command job, and the job document in it."""
        from cloudtrain.providers.azure.request import render

        return render(plan, image)

    def repository(self, settings: Settings) -> str:
        """Return the repository of the settings."""
        from cloudtrain.providers.azure.image import image_repository

        return image_repository(settings)

    def export(self, plan: Plan) -> Export:
        """Return the request with the Azure CLI's command for it."""
        from cloudtrain.providers.azure.request import export

        return export(plan)

    def start(
        self,
        plan: Plan,
        request: Request,
        run: RunFolder,
        archive: Path,
        progress: Progress | None,
        record: Record,
    ) -> dict[str, Any]:
        """Upload the source, create the job, and return its reference."""
        from cloudtrain.providers.azure.submit import start

        return start(plan, request, run, archive, progress, record)

    def poll_seconds(self, run: RunFolder) -> float:
        """Return the pause from the run's plan, in seconds."""
        return config_of(run).poll

    def observe(self, run: RunFolder, state: RunState) -> Iterable[Observation]:
        """Yield phases, log lines and the end of a job."""
        from cloudtrain.providers.azure.status import observe

        return observe(run, state)

    def stop(self, run: RunFolder, state: RunState, record: Record) -> bool:
        """Ask a job to save and end, by a file; then it is cancelled."""
        from cloudtrain.providers.azure.stop import stop

        return stop(run, state, record)

    def publish(self, run: RunFolder, state: RunState, name: str, text: str) -> None:  # noqa: ARG002
        """Write a small file to the place in the datastore that the job reads."""
        from cloudtrain.providers.azure.results import publish

        publish(run, name, text)

    def artifacts(self, run: RunFolder, state: RunState) -> Mapping[str, str]:
        """Return the datastore URIs of the artifacts of a run."""
        from cloudtrain.providers.azure.results import artifacts

        return artifacts(run, state)

    def checkpoints(self, run: RunFolder, state: RunState) -> str:
        """Return the datastore URI of a run's checkpoints."""
        from cloudtrain.providers.azure.results import checkpoints

        return checkpoints(run, state)

    def fetch(
        self,
        run: RunFolder,
        state: RunState,
        names: Sequence[str],
        folder: Path,
        progress: Progress | None,
        note: Note,
    ) -> list[str]:
        """Download artifacts from the datastore."""
        from cloudtrain.providers.azure.results import fetch

        return fetch(run, state, names, folder, progress, note)

    def discover_runs(
        self, settings: Settings, run_id: str | None, known: KnownRuns
    ) -> list[DiscoveredRun]:
        """List jobs with our tags in the workspace of the settings."""
        from cloudtrain.providers.azure.discover import discover_runs

        return discover_runs(settings, run_id, known)

    def backfill_logs(self, run: RunFolder, state: RunState) -> Iterable[Observation]:
        """Yield all log lines and events of another machine's ended run."""
        from cloudtrain.providers.azure.logs import backfill_logs

        return backfill_logs(run, state)

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
