"""The azure provider: runs a plan as an Azure ML command job."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cloudtrain.errors import UsageError
from cloudtrain.providers import DiscoveredRun, KnownRuns, Note, Progress, Provider, Request
from cloudtrain.providers.azure.config import AzureConfig, config_of, request_of
from cloudtrain.providers.azure.connection import client_of_run, connect
from cloudtrain.providers.azure.declaration import DECLARATION

if TYPE_CHECKING:
    from cloudtrain.checkup import Check
    from cloudtrain.issues import Issue
    from cloudtrain.planning.plan import Plan
    from cloudtrain.planning.reference import ResolvedImage
    from cloudtrain.planning.target import Target
    from cloudtrain.providers.infrastructure import Infrastructure
    from cloudtrain.providers.native_sweep import NativeSweeps
    from cloudtrain.runs.folder import RunFolder
    from cloudtrain.runs.observation import Observation, Record
    from cloudtrain.runs.state import RunState
    from cloudtrain.settings import Settings
    from cloudtrain.spec.model import JobSpec


class AzureMLProvider(Provider):
    """Azure ML command jobs. Modules that need azure-ai-ml are imported when they are used."""

    declaration = DECLARATION
    name = DECLARATION.name
    contracts = (DECLARATION.contract,)

    def target(self, settings: Settings, spec: JobSpec, *, rehearsal: bool = False) -> Target:
        """Workspace, machines, environment and price, from the spec, the settings and the catalog."""
        from cloudtrain.providers.azure.target import target

        return target(settings, spec, rehearsal=rehearsal)

    def rules(self, plan: Plan) -> list[Issue]:
        """Violations of Azure ML's rules, and problems with the inputs to upload."""
        from cloudtrain.providers.azure.validate import rule_issues

        return rule_issues(plan)

    def checks(self, plan: Plan, *, starting: bool) -> list[Issue]:  # noqa: ARG002  (it starts no program)
        """Report whether azure-ai-ml is installed. No network."""
        from cloudtrain.providers.azure.validate import local_issues

        return local_issues(plan)

    def security_findings(self, plan: Plan) -> list[Issue]:
        """Network, encryption, identity and ways into the job."""
        from cloudtrain.providers.azure.security import security_findings

        return security_findings(plan)

    def checkup(self, settings: Settings, target: Target, spec: JobSpec) -> Iterable[Check]:  # noqa: ARG002
        """Cloud, credentials, workspace, rights, storage and machines, for a job of this spec."""
        config = target.config_as(AzureConfig)
        try:
            cloud = connect(config.subscription, config.resource_group, config.workspace)
        except UsageError as error:
            from cloudtrain.checkup import Question

            return [Question("azure-ai-ml", "is it installed").failed(error)]
        from cloudtrain.providers.azure.arm import ResourceManager
        from cloudtrain.providers.azure.checkup import account_checks

        return account_checks(cloud, ResourceManager(), target, spec)

    def render(self, plan: Plan, image: ResolvedImage | None = None) -> Request:
        """The command-job document as plain JSON, and the job document in it.

        A rehearsed trial of a sweep with `engine: native` is as a sweep job would start it.
        """
        from cloudtrain.providers.azure.request import document_of, job_of

        if plan.is_rehearsal and plan.spec.sweep is not None:
            from cloudtrain.planning.tuned import is_rehearsed_trial
            from cloudtrain.providers.azure.sweep_request import rehearsed_trial, shared_job

            if is_rehearsed_trial(plan):
                return Request(
                    provider=self.name, document=rehearsed_trial(plan), job=shared_job(plan)
                )
        return Request(provider=self.name, document=document_of(plan, image), job=job_of(plan))

    def repository(self, settings: Settings) -> str:
        """The repository `azure.repository`, in any registry that the workspace may pull from."""
        from cloudtrain.providers.shared.account import configured_repository

        return configured_repository(settings, self.name)

    def start(
        self,
        plan: Plan,
        request: Request,
        run: RunFolder,
        archive: Path,
        progress: (
            Progress | None
        ),  # of inputs; the SDK uploads the source and shows its own progress
        record: Record,
    ) -> dict[str, Any]:
        """Check the compute, upload what is new, create the job."""
        from cloudtrain.providers.azure.submit import submit_job

        return submit_job(
            client_of_run(run), plan.target, request.document, run, archive, progress, record
        )

    def poll_seconds(self, run: RunFolder) -> float:
        """`azure.poll` as it was when the job was planned, in seconds."""
        return config_of(run).poll

    def observe(self, run: RunFolder, state: RunState) -> Iterable[Observation]:
        """The job's status, and the log lines and events of all its nodes."""
        from cloudtrain.providers.azure.status import observe

        if state.has_ended and not state.may_have_started:
            return []
        return observe(client_of_run(run), run, state, self.poll_seconds(run))

    def stop(self, run: RunFolder, state: RunState, record: Record) -> bool:
        """Ask the job to save and end, then cancel it."""
        from cloudtrain.providers.azure.stop import stop

        return stop(client_of_run(run), run, state, self.poll_seconds(run), record)

    def publish(self, run: RunFolder, state: RunState, name: str, text: str) -> None:  # noqa: ARG002
        """Write a blob into the job's output folder, which its nodes have mounted."""
        from cloudtrain.providers.azure.results import published_blob

        datastore, blob = published_blob(request_of(run), name)
        client_of_run(run).container(datastore).put(blob, text.encode())

    def artifacts(self, run: RunFolder, state: RunState) -> Mapping[str, str]:
        """Datastore URIs; none of a job that was never started."""
        from cloudtrain.providers.azure.results import artifact_uris

        return artifact_uris(request_of(run)) if state.ref is not None else {}

    def checkpoints(self, run: RunFolder, state: RunState) -> str:
        """The datastore URI of the checkpoints; empty if there is nothing below it."""
        from cloudtrain.providers.azure.results import has_blobs

        uri = self.artifacts(run, state).get("checkpoints", "")
        return uri if uri and has_blobs(client_of_run(run), uri) else ""

    def fetch(
        self,
        run: RunFolder,
        state: RunState,
        names: Sequence[str],
        folder: Path,
        progress: Progress | None,
        note: Note,
    ) -> list[str]:
        """Download from the URIs in the request; what Azure ML stores by itself goes into `output`."""
        from cloudtrain.providers.azure.results import fetch, fetch_artifacts

        cloud = client_of_run(run)
        uris = self.artifacts(run, state)
        found = fetch(cloud, uris, names, folder, progress, note)
        if "output" in names and uris and fetch_artifacts(cloud, run.run_id, folder / "output"):
            found = [name for name in names if name in {*found, "output"}]
        return found

    def release(self, run: RunFolder, state: RunState) -> Observation:  # noqa: ARG002
        """UsageError: clusters keep machines, not jobs."""
        hint = (
            "the cluster's own setting says when idle machines go: az ml compute update"
            " --min-instances 0"
        )
        raise UsageError(f"run {run.run_id} keeps no machines: a cluster does", hint=hint)

    def discover_runs(
        self, settings: Settings, run_id: str | None, known: KnownRuns
    ) -> list[DiscoveredRun]:
        """Jobs with our tags in the workspace of the settings."""
        from cloudtrain.providers.azure.account import workspace_of
        from cloudtrain.providers.azure.discover import discovered_runs
        from cloudtrain.providers.shared.machine_choice import regional_prices

        subscription, resource_group, name = workspace_of(settings)
        scope = AzureConfig(
            subscription=subscription,
            resource_group=resource_group,
            workspace=name,
            location=settings.get("azure.location"),
            poll=settings["azure.poll"],
        )
        prices = regional_prices("azure", scope.location or "", settings)
        cloud = connect(subscription, resource_group, name)
        return list(discovered_runs(cloud, scope, run_id, prices, known))

    def backfill_logs(self, run: RunFolder, state: RunState) -> Iterable[Observation]:
        """All log lines of an ended run that another machine started."""
        from cloudtrain.providers.azure.status import backfill_logs

        return backfill_logs(client_of_run(run), run, state)

    def infrastructure(self, settings: Settings, name: str, region: str) -> Infrastructure:
        """Return the ARM template and the deployment of that name."""
        from cloudtrain.providers.azure.infra import AzureInfrastructure

        if region:
            hint = "the deployment itself says where it is"
            raise UsageError("--region is for aws", hint=hint)
        return AzureInfrastructure(settings, name)

    def native_sweeps(self) -> NativeSweeps:
        """Sweep jobs."""
        from cloudtrain.providers.azure.sweep import AzureSweeps

        return AzureSweeps()

    def native(self, run: RunFolder, state: RunState) -> Any:
        """The `azure.ai.ml` Job."""
        if state.ref is None:
            raise UsageError(
                f"run {run.run_id} is {state.state}: there is no job",
                hint=f"cloudtrain status {run.run_id}",
            )
        return client_of_run(run).native(state.ref["name"])


PROVIDER = AzureMLProvider
"""What `get_provider` creates."""
