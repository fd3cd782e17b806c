"""The aws provider: run a plan as a SageMaker training job.

Each method imports its module when it is called: a command loads only what it needs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cloudtrain.errors import UsageError
from cloudtrain.providers.aws.config import config_of, connect
from cloudtrain.providers.aws.declaration import DECLARATION
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


class SageMakerProvider(Provider):
    """SageMaker training jobs."""

    declaration = DECLARATION
    name = DECLARATION.name
    contracts = (DECLARATION.contract,)

    def target(self, settings: Settings, spec: JobSpec, *, rehearsal: bool = False) -> Target:
        """Return account, machines, image and cost of a job; problems are in the target."""
        from cloudtrain.providers.aws.target import target

        return target(settings, spec, rehearsal=rehearsal)

    def rules(self, plan: Plan) -> list[Issue]:
        """Return broken rules and violations of SageMaker's service model."""
        from cloudtrain.providers.aws.rules import rule_issues

        return rule_issues(plan)

    def checks(self, plan: Plan, *, starting: bool) -> list[Issue]:  # noqa: ARG002  (no program is started)
        """Return an issue if boto3 is missing."""
        from cloudtrain.providers.aws.rules import sdk_issues

        return sdk_issues(plan)

    def security_findings(self, plan: Plan) -> Iterable[Issue]:
        """Return the findings of a security review of the request."""
        from cloudtrain.providers.aws.rules import security_findings

        return security_findings(plan)

    def checkup(self, plan: Plan) -> Iterable[Check]:
        """Ask the account for everything that a job of this spec needs."""
        from cloudtrain.providers.aws.checkup import account_checks

        return account_checks(plan)

    def render(self, plan: Plan, image: ResolvedImage | None = None) -> Request:
        """Return the body of CreateTrainingJob, and the job document."""
        from cloudtrain.providers.aws.request import render

        return render(plan, image)

    def repository(self, settings: Settings) -> str:
        """Return the ECR repository of the settings."""
        from cloudtrain.providers.aws.image import image_repository

        return image_repository(settings)

    def export(self, plan: Plan) -> Export:
        """Return the request, the job document, and the AWS CLI's commands for them."""
        from cloudtrain.providers.aws.request import export

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
        """Upload the source and the job document, create the job, and return its reference."""
        from cloudtrain.providers.aws.submit import TRAINING, start

        return start(TRAINING, plan, request, run, archive, progress, record)

    def poll_seconds(self, run: RunFolder) -> float:
        """Return the pause from the run's plan, in seconds."""
        return config_of(run).poll

    def observe(self, run: RunFolder, state: RunState) -> Iterable[Observation]:
        """Yield phases, log lines and the end of a job; of an ended one, its warm pool."""
        from cloudtrain.providers.aws.status import observe

        return observe(run, state)

    def stop(self, run: RunFolder, state: RunState, record: Record) -> bool:
        """Stop a job: SIGTERM to its containers. Return False to try again."""
        from cloudtrain.providers.aws.status import stop

        return stop(run, state, record)

    def publish(self, run: RunFolder, state: RunState, name: str, text: str) -> None:  # noqa: ARG002
        """Write a small file to the place in S3 that the job reads."""
        from cloudtrain.providers.aws.results import publish

        publish(run, name, text)

    def artifacts(self, run: RunFolder, state: RunState) -> Mapping[str, str]:
        """Return the S3 URIs of the artifacts of a run."""
        from cloudtrain.providers.aws.results import artifacts

        return artifacts(run, state)

    def checkpoints(self, run: RunFolder, state: RunState) -> str:
        """Return the S3 URI of a run's checkpoints."""
        from cloudtrain.providers.aws.results import checkpoints

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
        """Download artifacts from S3."""
        from cloudtrain.providers.aws.results import fetch

        return fetch(run, state, names, folder, progress, note)

    def release(self, run: RunFolder, state: RunState) -> Observation:
        """Release the warm pool of a job."""
        from cloudtrain.providers.aws.status import release

        return release(run, state)

    def discover_runs(
        self, settings: Settings, run_id: str | None, known: KnownRuns
    ) -> list[DiscoveredRun]:
        """List jobs with our tags in the region of the settings."""
        from cloudtrain.providers.aws.discover import discover_runs

        return discover_runs(settings, run_id, known)

    def backfill_logs(self, run: RunFolder, state: RunState) -> Iterable[Observation]:
        """Yield all log lines and events of another machine's ended run."""
        from cloudtrain.providers.aws.results import backfill_logs

        return backfill_logs(run, state)

    def infrastructure(self, settings: Settings, name: str, region: str) -> Infrastructure:
        """Return the CloudFormation template and the stack of that name."""
        from cloudtrain.providers.aws.account import configured_region, format_issues
        from cloudtrain.providers.aws.infrastructure import AwsInfrastructure

        where = region or configured_region(settings)
        if not where:
            return AwsInfrastructure(None, name)

        for issue in format_issues("region", where):
            raise UsageError(issue.line(), hint=issue.hint)

        return AwsInfrastructure(connect(where), name)

    def native_sweeps(self) -> NativeSweeps:
        """Return SageMaker's tuning jobs."""
        from cloudtrain.providers.aws.tuning import SageMakerTuning

        return SageMakerTuning()


PROVIDER = SageMakerProvider
"""Class that `get_provider` creates."""
