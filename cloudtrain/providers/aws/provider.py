"""The aws provider: run a plan as a SageMaker training job."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cloudtrain.errors import UsageError
from cloudtrain.providers import Provider, lazy_method
from cloudtrain.providers.aws.config import config_of, connect
from cloudtrain.providers.aws.declaration import DECLARATION

if TYPE_CHECKING:
    from cloudtrain.providers.infrastructure import Infrastructure
    from cloudtrain.runs.folder import RunFolder
    from cloudtrain.settings import Settings


class SageMakerProvider(Provider):
    """SageMaker training jobs."""

    declaration = DECLARATION
    name = DECLARATION.name
    contracts = (DECLARATION.contract,)

    target = lazy_method("cloudtrain.providers.aws.target:target")
    rules = lazy_method("cloudtrain.providers.aws.rules:rule_issues")
    checks = lazy_method("cloudtrain.providers.aws.rules:sdk_issues")
    security_findings = lazy_method("cloudtrain.providers.aws.rules:security_findings")
    checkup = lazy_method("cloudtrain.providers.aws.checkup:account_checks")
    render = lazy_method("cloudtrain.providers.aws.tuning_request:render")
    repository = lazy_method("cloudtrain.providers.aws.image:image_repository")
    export = lazy_method("cloudtrain.providers.aws.request:export")
    start = lazy_method("cloudtrain.providers.aws.submit:start")
    observe = lazy_method("cloudtrain.providers.aws.status:observe")
    stop = lazy_method("cloudtrain.providers.aws.status:stop")
    publish = lazy_method("cloudtrain.providers.aws.results:publish")
    artifacts = lazy_method("cloudtrain.providers.aws.results:artifacts")
    checkpoints = lazy_method("cloudtrain.providers.aws.results:checkpoints")
    fetch = lazy_method("cloudtrain.providers.aws.results:fetch")
    release = lazy_method("cloudtrain.providers.aws.status:release")
    discover_runs = lazy_method("cloudtrain.providers.aws.discover:discover_runs")
    backfill_logs = lazy_method("cloudtrain.providers.aws.results:backfill_logs")
    native_sweeps = lazy_method("cloudtrain.providers.aws.tuning:SageMakerTuning")

    def poll_seconds(self, run: RunFolder) -> float:
        """Return the pause from the run's plan, in seconds."""
        return config_of(run).poll

    def infrastructure(self, settings: Settings, name: str, region: str) -> Infrastructure:
        """Return the CloudFormation template and the stack of that name."""
        from cloudtrain.providers.aws.account import configured_region, format_issues
        from cloudtrain.providers.aws.infrastructure import AwsInfrastructure

        where = region or configured_region(settings)
        for issue in format_issues("region", where) if where else ():
            raise UsageError(issue.line(), hint=issue.hint)
        return AwsInfrastructure(connect(where) if where else None, name)


PROVIDER = SageMakerProvider
"""Class that `get_provider` creates."""
