"""The aws provider: run a plan as a SageMaker training job."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cloudtrain.bundle import bundled
from cloudtrain.errors import CloudError, Issue, UsageError
from cloudtrain.planning.launch import Request
from cloudtrain.providers import DiscoveredRun, KnownRuns, LazyPackage, Note, Progress, Provider
from cloudtrain.providers.aws.config import (
    AwsConfig,
    client_of_run,
    config_of,
    connect,
    request_of,
)
from cloudtrain.providers.aws.declaration import DECLARATION
from cloudtrain.providers.infrastructure import Deployment, Infrastructure, SettingValue

if TYPE_CHECKING:
    from cloudtrain.checkup import Check
    from cloudtrain.planning.plan import Plan
    from cloudtrain.planning.reference import ResolvedImage
    from cloudtrain.planning.target import Target
    from cloudtrain.providers import aws
    from cloudtrain.providers.aws.client import AwsClient
    from cloudtrain.providers.native_sweep import NativeSweeps
    from cloudtrain.runs.folder import RunFolder
    from cloudtrain.runs.logs import Observation, Record
    from cloudtrain.runs.state import RunState
    from cloudtrain.settings import Settings
    from cloudtrain.spec.model import JobSpec
else:
    aws = LazyPackage("cloudtrain.providers.aws")


_TEXTS = {
    "region": "Region",
    "role": "Role",
    "bucket": "Bucket",
    "repository": "Repository",
    "kms_key": "KmsKey",
}
_LISTS = {"subnets": "Subnets", "security_groups": "SecurityGroups"}
"""Setting -> output of the stack."""

_MEANINGS = {
    "SubmitterPolicy": "policy to attach to people who submit",
    "GitHubRole": "role for the GitHub workflow",
}
"""Output that is not a setting -> its meaning."""


class AwsInfrastructure(Infrastructure):
    """The stack of one name in one region."""

    formats = ("cloudformation", "terraform")

    def __init__(self, cloud: AwsClient | None, name: str) -> None:
        """`cloud`: None if no region is known, which is enough for the template."""
        self._cloud = cloud
        self._name = name

    def template(self, format_: str) -> str:
        """Return the CloudFormation template, or the Terraform module that deploys it."""
        folder = bundled("infra") / "aws"
        if format_ == "cloudformation":
            return (folder / "cloudtrain.yaml").read_text(encoding="utf-8")

        files = [folder / "terraform" / f"{name}.tf" for name in ("main", "variables", "outputs")]
        module = "\n".join(path.read_text(encoding="utf-8") for path in files)
        module = module.replace("../cloudtrain.yaml", "cloudtrain.yaml")
        command = "cloudtrain infra template --provider aws > cloudtrain.yaml"
        return f"# Put the template into the same folder: {command}\n{module}"

    def deployment(self) -> Deployment:
        """Read the outputs of the stack."""
        if self._cloud is None:
            hint = "--region us-east-1, or [aws] region in cloudtrain.toml"
            raise UsageError("aws.region is not set", hint=hint)

        outputs = self._outputs(self._cloud)
        return Deployment(
            settings=settings_of(outputs),
            outputs={
                meaning: outputs[name] for name, meaning in _MEANINGS.items() if name in outputs
            },
        )

    def _outputs(self, cloud: AwsClient) -> dict[str, str]:
        """Return the outputs of the stack. Raise CloudError if the template's are missing."""
        stack = f"the stack {self._name} in {cloud.region}"
        try:
            answer = cloud.call("cloudformation", "describe_stacks", StackName=self._name)
        except CloudError as error:
            if error.code == "ValidationError" and "does not exist" in error.what:
                hint = (
                    "--name and --region choose another one; cloudtrain infra template --provider"
                    " aws prints a template for aws cloudformation deploy"
                )
                raise CloudError(f"{stack} does not exist", code="NotFound", hint=hint) from error
            raise

        description = answer["Stacks"][0]
        outputs = {
            output["OutputKey"]: output["OutputValue"] for output in description.get("Outputs", [])
        }
        if "Role" not in outputs:
            reason = description.get("StackStatusReason", "the output Role is missing")
            raise CloudError(
                f"{stack} is not ready ({description['StackStatus']}): {reason}",
                code=description["StackStatus"],
                hint=f"aws cloudformation describe-stack-events --stack-name {self._name}",
            )
        return outputs


def settings_of(outputs: Mapping[str, str]) -> dict[str, SettingValue]:
    """Return the outputs of a stack as settings of cloudtrain.toml."""
    settings: dict[str, SettingValue] = {
        f"aws.{key}": outputs[name] for key, name in _TEXTS.items() if name in outputs
    }
    for key, name in _LISTS.items():
        if name in outputs:
            settings[f"aws.{key}"] = tuple(outputs[name].split(","))
    return settings


class SageMakerProvider(Provider):
    """SageMaker training jobs. Modules that need boto3 are imported late."""

    declaration = DECLARATION
    name = DECLARATION.name
    contracts = (DECLARATION.contract,)

    def target(self, settings: Settings, spec: JobSpec, *, rehearsal: bool = False) -> Target:
        """Return region, role, bucket, instance types, image and price of a job."""
        return aws.target.target(settings, spec, rehearsal=rehearsal)

    def rules(self, plan: Plan) -> list[Issue]:
        """Return violations of SageMaker's rules and of its service model."""
        return aws.validate.rule_issues(plan)

    def checks(self, plan: Plan, *, starting: bool) -> list[Issue]:  # noqa: ARG002  (no program is started)
        """Return an issue if boto3 is missing."""
        return (
            [Issue((), "boto3 is not installed", aws.validate.INSTALL)]
            if aws.validate.lacks_boto3(plan)
            else []
        )

    def security_findings(self, plan: Plan) -> list[Issue]:
        """Return findings about network, encryption, identity and ways into the job."""
        return aws.rules.security_findings(plan)

    def checkup(self, settings: Settings, target: Target, spec: JobSpec) -> Iterable[Check]:  # noqa: ARG002
        """Check credentials, role and rights, bucket, quota and network for this spec."""
        try:
            cloud = connect(target.config_as(AwsConfig).region, target.config_as(AwsConfig).profile)
        except UsageError as error:
            from cloudtrain.checkup import Question

            return [Question("boto3", "is it installed").failed(error)]
        return aws.account_checks.account_checks(cloud, target, spec)

    def render(self, plan: Plan, image: ResolvedImage | None = None) -> Request:
        """Return the body of CreateTrainingJob as plain JSON, and the job document.

        A rehearsed trial of a sweep with `engine: native` has the form that a tuning job gives it.
        """
        from cloudtrain.planning.request_overrides import merge_request

        if plan.is_rehearsal and plan.spec.sweep is not None:
            from cloudtrain.planning.tuned import is_rehearsed_trial

            if is_rehearsed_trial(plan):
                return Request(
                    provider=self.name,
                    document=aws.tuning_request.trial_body(plan),
                    job=aws.tuning_request.tuning_document(plan),
                )
        job = aws.request.job_of(plan)
        body = aws.request.body_of(plan, image, job.to_json())
        body = merge_request(body, aws.request.section_of(plan).request, aws.request.FORM)
        return Request(provider=self.name, document=body, job=job)

    def repository(self, settings: Settings) -> str:
        """Return an ECR repository; a bare name is in the role's account and settings' region."""
        return aws.target.image_repository(settings)

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
        return aws.submit.submit_job(client_of_run(run), request, archive, progress, record)

    def poll_seconds(self, run: RunFolder) -> float:
        """Return `aws.poll` from the run's plan, in seconds."""
        return config_of(run).poll

    def observe(self, run: RunFolder, state: RunState) -> Iterable[Observation]:
        """Yield the job's status, log lines and events of all nodes; later the warm pool."""
        if state.has_ended and not state.may_have_started:
            return (
                [aws.status.warm_pool_observation(client_of_run(run), run, state)]
                if state.keeps_machines
                else []
            )
        return aws.status.observe(client_of_run(run), run, state, self.poll_seconds(run))

    def stop(self, run: RunFolder, state: RunState, record: Record) -> bool:
        """Call StopTrainingJob: SIGTERM to every container, two minutes, SIGKILL."""
        return aws.status.stop(client_of_run(run), run, request_of(run), state, record)

    def publish(self, run: RunFolder, state: RunState, name: str, text: str) -> None:  # noqa: ARG002
        """Put an object below the run's own prefix, encrypted as the rest of the run is."""
        request = request_of(run)
        bucket, key = aws.request.uri_parts(
            aws.request.published_uri(request["OutputDataConfig"]["S3OutputPath"], run.run_id)
        )
        kms_key = request["OutputDataConfig"].get("KmsKeyId")
        client_of_run(run).put(bucket, f"{key}/{name}", text.encode(), kms_key)

    def artifacts(self, run: RunFolder, state: RunState) -> Mapping[str, str]:
        """Return S3 URIs; empty for a job that was never started."""
        return aws.results.artifact_uris(request_of(run)) if state.ref is not None else {}

    def checkpoints(self, run: RunFolder, state: RunState) -> str:
        """Return the S3 prefix of the checkpoints; empty without any object below it."""
        uri = self.artifacts(run, state).get("checkpoints", "")
        return (
            uri
            if uri and any(True for _ in client_of_run(run).objects(*aws.request.uri_parts(uri)))
            else ""
        )

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
        return aws.results.fetch(
            client_of_run(run), dict(self.artifacts(run, state)), names, folder, progress, note
        )

    def release(self, run: RunFolder, state: RunState) -> Observation:
        """End the warm pool, by UpdateTrainingJob."""
        return aws.status.release(client_of_run(run), run, state)

    def discover_runs(
        self, settings: Settings, run_id: str | None, known: KnownRuns
    ) -> list[DiscoveredRun]:
        """List jobs with our tags in the region of the settings."""
        from cloudtrain.providers.shared.machine_choice import regional_prices

        region = aws.target.region_of(settings)
        prices = regional_prices("aws", region, settings)
        return list(
            aws.phases.discovered_runs(connect(region), run_id, settings["aws.poll"], prices, known)
        )

    def backfill_logs(self, run: RunFolder, state: RunState) -> Iterable[Observation]:
        """Yield all log lines of an ended run that another machine started."""
        from cloudtrain.providers.shared.log_attempt import backfill

        cloud = client_of_run(run)
        return backfill(
            lambda positions: aws.results.new_lines(cloud, run.run_id, state.nodes, positions),
            state,
        )

    def infrastructure(self, settings: Settings, name: str, region: str) -> Infrastructure:
        """Return the CloudFormation template and the stack of that name."""
        where = region or aws.target.configured_region(settings)
        for issue in aws.target.format_issues("region", where) if where else ():
            raise UsageError(issue.line(), hint=issue.hint)
        return AwsInfrastructure(connect(where) if where else None, name)

    def native_sweeps(self) -> NativeSweeps:
        """Return the service of hyperparameter tuning jobs."""
        return aws.tuning.SageMakerTuning()


PROVIDER = SageMakerProvider
"""Class that `get_provider` creates."""
