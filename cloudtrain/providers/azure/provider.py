"""The azure provider: run a plan as an Azure ML command job."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cloudtrain.bundle import bundled
from cloudtrain.errors import CloudError, UsageError
from cloudtrain.planning.launch import Request
from cloudtrain.providers import DiscoveredRun, KnownRuns, LazyPackage, Note, Progress, Provider
from cloudtrain.providers.azure.config import (
    AzureConfig,
    client_of_run,
    config_of,
    connect,
    request_of,
)
from cloudtrain.providers.azure.declaration import DECLARATION
from cloudtrain.providers.infrastructure import Deployment, Infrastructure
from cloudtrain.settings import Settings

_VERSION = "2021-04-01"
"""Version of the API of Microsoft.Resources/deployments."""

_MEANINGS = {"vault": "key vault for secrets of jobs", "github_client_id": "client id for GitHub"}
"""Output that is not a setting -> its meaning."""


class AzureInfrastructure(Infrastructure):
    """The deployment of one name in the resource group of the settings, or of the same name."""

    formats = ("arm",)

    def __init__(self, settings: Settings, name: str) -> None:
        self._settings = settings
        self._name = name

    def template(self, format_: str) -> str:  # noqa: ARG002  (only one exists)
        """Return the ARM template."""
        return (bundled("infra") / "azure" / "template.json").read_text(encoding="utf-8")

    def deployment(self) -> Deployment:
        """Read the outputs of the deployment."""
        outputs = self._outputs()
        return Deployment(
            settings={
                f"azure.{key}": value
                for key, value in outputs.items()
                if key in DECLARATION.settings and value
            },
            outputs={
                meaning: outputs[name] for name, meaning in _MEANINGS.items() if name in outputs
            },
        )

    def _outputs(self) -> dict[str, str]:
        """Return the outputs of the deployment. Raise CloudError if it has not succeeded."""
        group = self._settings.get("azure.resource_group") or self._name
        path = (
            f"/subscriptions/{self._subscription()}/resourceGroups/{group}/providers"
            f"/Microsoft.Resources/deployments/{self._name}"
        )
        where = f"the deployment {self._name} in the resource group {group}"

        properties = _properties(path)
        if properties is None:
            hint = (
                "--name and azure.resource_group choose another one; cloudtrain infra template"
                " --provider azure prints a template for az deployment group create"
            )
            raise CloudError(f"{where} does not exist", code="NotFound", hint=hint)

        state = str(properties.get("provisioningState"))
        if state != "Succeeded":
            show = f"az deployment operation group list --resource-group {group}"
            raise CloudError(
                f"{where} is not ready ({state})", code=state, hint=f"{show} --name {self._name}"
            )
        return {
            name: str(output["value"]) for name, output in (properties.get("outputs") or {}).items()
        }

    def _subscription(self) -> str:
        default = azure.target.cli_default_account().get("subscription")
        subscription = self._settings.get("azure.subscription") or (default and default[0])
        if not subscription:
            hint = "az login, or [azure] subscription in cloudtrain.toml"
            raise UsageError("azure.subscription is not set", hint=hint)
        return str(subscription)


def _properties(path: str) -> Mapping[str, Any] | None:
    """Return the properties of a deployment; None if there is no such deployment."""
    try:
        from cloudtrain.providers.azure.sdk import ResourceManager
    except ImportError as error:
        message = f"this needs azure-ai-ml, which is not installed: {error}"
        raise UsageError(message, hint='pip install "cloudtrain[azure]"') from error

    resource = ResourceManager().find(path, _VERSION)
    return None if resource is None else resource.document["properties"]


if TYPE_CHECKING:
    from cloudtrain.checkup import Check
    from cloudtrain.errors import Issue
    from cloudtrain.planning.plan import Plan
    from cloudtrain.planning.reference import ResolvedImage
    from cloudtrain.planning.target import Target
    from cloudtrain.providers import azure
    from cloudtrain.providers.infrastructure import Infrastructure
    from cloudtrain.providers.native_sweep import NativeSweeps
    from cloudtrain.runs.folder import RunFolder
    from cloudtrain.runs.logs import Observation, Record
    from cloudtrain.runs.state import RunState
    from cloudtrain.settings import Settings
    from cloudtrain.spec.model import JobSpec
else:
    azure = LazyPackage("cloudtrain.providers.azure")


class AzureMLProvider(Provider):
    """Azure ML command jobs. Modules that need azure-ai-ml are imported late."""

    declaration = DECLARATION

    def target(self, settings: Settings, spec: JobSpec, *, rehearsal: bool = False) -> Target:
        """Return workspace, machines, environment and price of a job."""
        return azure.target.target(settings, spec, rehearsal=rehearsal)

    def rules(self, plan: Plan) -> list[Issue]:
        """Return violations of Azure ML's rules, and problems with the inputs to upload."""
        return azure.rules.rule_issues(plan)

    def checks(self, plan: Plan, *, starting: bool) -> list[Issue]:  # noqa: ARG002  (no program is started)
        """Return an issue if azure-ai-ml is not installed. No network."""
        return azure.rules.local_issues(plan)

    def security_findings(self, plan: Plan) -> list[Issue]:
        """Return findings about network, encryption, identity and ways into the job."""
        return azure.rules.security_findings(plan)

    def checkup(self, settings: Settings, target: Target, spec: JobSpec) -> Iterable[Check]:  # noqa: ARG002
        """Check cloud, credentials, workspace, rights, storage and machines for this spec."""
        config = target.config_as(AzureConfig)
        try:
            cloud = connect(config.subscription, config.resource_group, config.workspace)
        except UsageError as error:
            from cloudtrain.checkup import Question

            return [Question("azure-ai-ml", "is it installed").failed(error)]
        return azure.checkup.account_checks(cloud, azure.sdk.ResourceManager(), target, spec)

    def render(self, plan: Plan, image: ResolvedImage | None = None) -> Request:
        """Return the command-job document as plain JSON, and the job document in it.

        A rehearsed trial of a sweep with `engine: native` has the form that a sweep job gives it.
        """
        from cloudtrain.planning.request_overrides import merge_request

        if plan.is_rehearsal and plan.spec.sweep is not None:
            from cloudtrain.planning.tuned import is_rehearsed_trial

            if is_rehearsed_trial(plan):
                return Request(
                    provider=DECLARATION.name,
                    document=azure.sweep_request.rehearsed_trial(plan),
                    job=azure.sweep_request.shared_job(plan),
                )
        job = azure.request.job_of(plan)
        document = azure.request.document_of(plan, image, job)
        overrides = azure.request.section_of(plan).request
        document = merge_request(document, overrides, azure.request.FORM)
        return Request(provider=DECLARATION.name, document=document, job=job)

    def repository(self, settings: Settings) -> str:
        """Return `azure.repository`, in any registry that the workspace may pull from."""
        from cloudtrain.providers.shared.account import configured_repository

        return configured_repository(settings, DECLARATION.name)

    def start(
        self,
        plan: Plan,
        request: Request,
        run: RunFolder,
        archive: Path,
        progress: Progress | None,  # for inputs; the SDK shows its own for the source
        record: Record,
    ) -> dict[str, Any]:
        """Check the compute, upload new files, create the job."""
        return azure.submit.submit_job(
            client_of_run(run), plan.target, request.document, run, archive, progress, record
        )

    def poll_seconds(self, run: RunFolder) -> float:
        """Return `azure.poll` from the run's plan, in seconds."""
        return config_of(run).poll

    def observe(self, run: RunFolder, state: RunState) -> Iterable[Observation]:
        """Yield the job's status, and the log lines and events of all its nodes."""
        if state.has_ended and not state.may_have_started:
            return []
        return azure.status.observe(client_of_run(run), run, state, self.poll_seconds(run))

    def stop(self, run: RunFolder, state: RunState, record: Record) -> bool:
        """Ask the job to save and end, then cancel it."""
        return azure.stop.stop(client_of_run(run), run, state, self.poll_seconds(run), record)

    def publish(self, run: RunFolder, state: RunState, name: str, text: str) -> None:  # noqa: ARG002
        """Write a blob into the job's output folder, which its nodes have mounted."""
        datastore, blob = azure.results.published_blob(request_of(run), name)
        client_of_run(run).container(datastore).put(blob, text.encode())

    def artifacts(self, run: RunFolder, state: RunState) -> Mapping[str, str]:
        """Return datastore URIs; empty for a job that was never started."""
        return azure.results.artifact_uris(request_of(run)) if state.ref is not None else {}

    def checkpoints(self, run: RunFolder, state: RunState) -> str:
        """Return the datastore URI of the checkpoints; empty without any blob below it."""
        uri = self.artifacts(run, state).get("checkpoints", "")
        return uri if uri and azure.results.has_blobs(client_of_run(run), uri) else ""

    def fetch(
        self,
        run: RunFolder,
        state: RunState,
        names: Sequence[str],
        folder: Path,
        progress: Progress | None,
        note: Note,
    ) -> list[str]:
        """Download from the URIs in the request; folders of Azure ML itself go into `output`."""
        uris = self.artifacts(run, state)
        return azure.results.fetch(
            client_of_run(run), run.run_id, uris, names, folder, progress, note
        )

    def discover_runs(
        self, settings: Settings, run_id: str | None, known: KnownRuns
    ) -> list[DiscoveredRun]:
        """List jobs with our tags in the workspace of the settings."""
        from cloudtrain.providers.shared.machine_choice import regional_prices

        subscription, resource_group, name = azure.target.workspace_of(settings)
        scope = AzureConfig(
            subscription=subscription,
            resource_group=resource_group,
            workspace=name,
            location=settings.get("azure.location"),
            poll=settings["azure.poll"],
        )
        prices = regional_prices("azure", scope.location or "", settings)
        cloud = connect(subscription, resource_group, name)
        return list(azure.discover.discovered_runs(cloud, scope, run_id, prices, known))

    def backfill_logs(self, run: RunFolder, state: RunState) -> Iterable[Observation]:
        """Yield all log lines of an ended run that another machine started."""
        return azure.status.backfill_logs(client_of_run(run), run, state)

    def infrastructure(self, settings: Settings, name: str, region: str) -> Infrastructure:
        """Return the ARM template and the deployment of that name."""
        if region:
            hint = "the deployment itself says where it is"
            raise UsageError("--region is for aws", hint=hint)
        return AzureInfrastructure(settings, name)

    def native_sweeps(self) -> NativeSweeps:
        """Return the service of sweep jobs."""
        return azure.sweep.AzureSweeps()


PROVIDER = AzureMLProvider
"""Class that `get_provider` creates."""
