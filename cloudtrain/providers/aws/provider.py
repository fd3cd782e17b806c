"""The aws provider: run a plan as a SageMaker training job."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cloudtrain.errors import Issue, UsageError
from cloudtrain.planning.launch import Request
from cloudtrain.providers import DiscoveredRun, KnownRuns, Note, Progress, Provider
from cloudtrain.providers.aws.config import (
    AwsConfig,
    client_of_run,
    config_of,
    connect,
    request_of,
)
from cloudtrain.providers.aws.declaration import DECLARATION

if TYPE_CHECKING:
    from cloudtrain.checkup import Check
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


class SageMakerProvider(Provider):
    """SageMaker training jobs. Modules that need boto3 are imported late."""

    declaration = DECLARATION
    name = DECLARATION.name
    contracts = (DECLARATION.contract,)

    def target(self, settings: Settings, spec: JobSpec, *, rehearsal: bool = False) -> Target:
        """Return region, role, bucket, instance types, image and price of a job."""
        from cloudtrain.providers.aws.target import target

        return target(settings, spec, rehearsal=rehearsal)

    def rules(self, plan: Plan) -> list[Issue]:
        """Return violations of SageMaker's rules and of its service model."""
        from cloudtrain.providers.aws.validate import rule_issues

        return rule_issues(plan)

    def checks(self, plan: Plan, *, starting: bool) -> list[Issue]:  # noqa: ARG002  (no program is started)
        """Return an issue if boto3 is missing."""
        from cloudtrain.providers.aws.validate import INSTALL, lacks_boto3

        return [Issue((), "boto3 is not installed", INSTALL)] if lacks_boto3(plan) else []

    def security_findings(self, plan: Plan) -> list[Issue]:
        """Return findings about network, encryption, identity and ways into the job."""
        from cloudtrain.providers.aws.rules import security_findings

        return security_findings(plan)

    def checkup(self, settings: Settings, target: Target, spec: JobSpec) -> Iterable[Check]:  # noqa: ARG002
        """Check credentials, role and rights, bucket, quota and network for this spec."""
        try:
            cloud = connect(target.config_as(AwsConfig).region, target.config_as(AwsConfig).profile)
        except UsageError as error:
            from cloudtrain.checkup import Question

            return [Question("boto3", "is it installed").failed(error)]
        from cloudtrain.providers.aws.account_checks import account_checks

        return account_checks(cloud, target, spec)

    def render(self, plan: Plan, image: ResolvedImage | None = None) -> Request:
        """Return the body of CreateTrainingJob as plain JSON, and the job document.

        A rehearsed trial of a sweep with `engine: native` has the form that a tuning job gives it.
        """
        from cloudtrain.planning.request_overrides import merge_request
        from cloudtrain.providers.aws.request import FORM, body_of, job_of, section_of

        if plan.is_rehearsal and plan.spec.sweep is not None:
            from cloudtrain.planning.tuned import is_rehearsed_trial
            from cloudtrain.providers.aws.tuning_request import trial_body, tuning_document

            if is_rehearsed_trial(plan):
                return Request(
                    provider=self.name, document=trial_body(plan), job=tuning_document(plan)
                )
        job = job_of(plan)
        body = body_of(plan, image, job.to_json())
        body = merge_request(body, section_of(plan).request, FORM)
        return Request(provider=self.name, document=body, job=job)

    def repository(self, settings: Settings) -> str:
        """Return an ECR repository; a bare name is in the role's account and settings' region."""
        from cloudtrain.providers.aws.target import image_repository

        return image_repository(settings)

    def start(
        self,
        plan: Plan,  # noqa: ARG002
        request: Request,
        run: RunFolder,
        archive: Path,
        progress: Progress | None,
        record: Record,
    ) -> dict[str, Any]:
        """Upload the source and the job document, then create the job.

        That takes three calls if the source is small or known.
        """
        from cloudtrain.providers.aws.submit import submit_job

        return submit_job(client_of_run(run), request, archive, progress, record)

    def poll_seconds(self, run: RunFolder) -> float:
        """Return `aws.poll` from the run's plan, in seconds."""
        return config_of(run).poll

    def observe(self, run: RunFolder, state: RunState) -> Iterable[Observation]:
        """Yield the job's status, log lines and events of all nodes; later the warm pool."""
        from cloudtrain.providers.aws.status import observe, warm_pool_observation

        if state.has_ended and not state.may_have_started:
            return (
                [warm_pool_observation(client_of_run(run), run, state)]
                if state.keeps_machines
                else []
            )
        return observe(client_of_run(run), run, state, self.poll_seconds(run))

    def stop(self, run: RunFolder, state: RunState, record: Record) -> bool:
        """Call StopTrainingJob: SIGTERM to every container, two minutes, SIGKILL."""
        from cloudtrain.providers.aws.status import stop

        return stop(client_of_run(run), run, request_of(run), state, record)

    def publish(self, run: RunFolder, state: RunState, name: str, text: str) -> None:  # noqa: ARG002
        """Put an object below the run's own prefix, encrypted as the rest of the run is."""
        from cloudtrain.providers.aws.request import published_uri, uri_parts

        request = request_of(run)
        bucket, key = uri_parts(
            published_uri(request["OutputDataConfig"]["S3OutputPath"], run.run_id)
        )
        kms_key = request["OutputDataConfig"].get("KmsKeyId")
        client_of_run(run).put(bucket, f"{key}/{name}", text.encode(), kms_key)

    def artifacts(self, run: RunFolder, state: RunState) -> Mapping[str, str]:
        """Return S3 URIs; empty for a job that was never started."""
        from cloudtrain.providers.aws.results import artifact_uris

        return artifact_uris(request_of(run)) if state.ref is not None else {}

    def checkpoints(self, run: RunFolder, state: RunState) -> str:
        """Return the S3 prefix of the checkpoints; empty without any object below it."""
        from cloudtrain.providers.aws.request import uri_parts

        uri = self.artifacts(run, state).get("checkpoints", "")
        return uri if uri and any(True for _ in client_of_run(run).objects(*uri_parts(uri))) else ""

    def fetch(
        self,
        run: RunFolder,
        state: RunState,
        names: Sequence[str],
        folder: Path,
        progress: Progress | None,
        note: Note,
    ) -> list[str]:
        """Download the artifacts and extract the archives."""
        from cloudtrain.providers.aws.results import fetch

        return fetch(
            client_of_run(run), dict(self.artifacts(run, state)), names, folder, progress, note
        )

    def release(self, run: RunFolder, state: RunState) -> Observation:
        """End the warm pool, by UpdateTrainingJob."""
        from cloudtrain.providers.aws.status import release

        return release(client_of_run(run), run, state)

    def discover_runs(
        self, settings: Settings, run_id: str | None, known: KnownRuns
    ) -> list[DiscoveredRun]:
        """List jobs with our tags in the region of the settings."""
        from cloudtrain.providers.aws.discover import discovered_runs
        from cloudtrain.providers.aws.target import region_of
        from cloudtrain.providers.shared.machine_choice import regional_prices

        region = region_of(settings)
        prices = regional_prices("aws", region, settings)
        return list(discovered_runs(connect(region), run_id, settings["aws.poll"], prices, known))

    def backfill_logs(self, run: RunFolder, state: RunState) -> Iterable[Observation]:
        """Yield all log lines of an ended run that another machine started."""
        from cloudtrain.providers.aws.logs import new_lines
        from cloudtrain.providers.shared.log_attempt import backfill

        cloud = client_of_run(run)
        return backfill(
            lambda positions: new_lines(cloud, run.run_id, state.nodes, positions), state
        )

    def infrastructure(self, settings: Settings, name: str, region: str) -> Infrastructure:
        """Return the CloudFormation template and the stack of that name."""
        from cloudtrain.providers.aws.infra import AwsInfrastructure
        from cloudtrain.providers.aws.target import configured_region, format_issues

        where = region or configured_region(settings)
        for issue in format_issues("region", where) if where else ():
            raise UsageError(issue.line(), hint=issue.hint)
        return AwsInfrastructure(connect(where) if where else None, name)

    def native_sweeps(self) -> NativeSweeps:
        """Return the service of hyperparameter tuning jobs."""
        from cloudtrain.providers.aws.tuning import SageMakerTuning

        return SageMakerTuning()

    def native(self, run: RunFolder, state: RunState) -> Any:
        """Return the `sagemaker.core` TrainingJob."""
        if state.ref is None:
            raise UsageError(
                f"run {run.run_id} is {state.state}: it has not created a training job",
                hint=f"cloudtrain status {run.run_id}",
            )
        from cloudtrain.providers.aws.client import native_job

        return native_job(state.ref["name"], state.ref["region"])


PROVIDER = SageMakerProvider
"""Class that `get_provider` creates."""
