"""The azure provider: run a plan as an Azure ML command job."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cloudtrain.errors import UsageError
from cloudtrain.providers import Provider, lazy_method
from cloudtrain.providers.azure.config import config_of
from cloudtrain.providers.azure.declaration import DECLARATION

if TYPE_CHECKING:
    from cloudtrain.providers.infrastructure import Infrastructure
    from cloudtrain.runs.folder import RunFolder
    from cloudtrain.settings import Settings


class AzureMLProvider(Provider):
    """Azure ML command jobs."""

    declaration = DECLARATION

    target = lazy_method("cloudtrain.providers.azure.target:target")
    rules = lazy_method("cloudtrain.providers.azure.rules:rule_issues")
    checks = lazy_method("cloudtrain.providers.azure.rules:sdk_issues")
    security_findings = lazy_method("cloudtrain.providers.azure.rules:security_findings")
    checkup = lazy_method("cloudtrain.providers.azure.checkup:account_checks")
    render = lazy_method("cloudtrain.providers.azure.sweep_request:render")
    repository = lazy_method("cloudtrain.providers.azure.image:image_repository")
    export = lazy_method("cloudtrain.providers.azure.request:export")
    start = lazy_method("cloudtrain.providers.azure.submit:start")
    observe = lazy_method("cloudtrain.providers.azure.status:observe")
    stop = lazy_method("cloudtrain.providers.azure.stop:stop")
    publish = lazy_method("cloudtrain.providers.azure.results:publish")
    artifacts = lazy_method("cloudtrain.providers.azure.results:artifacts")
    checkpoints = lazy_method("cloudtrain.providers.azure.results:checkpoints")
    fetch = lazy_method("cloudtrain.providers.azure.results:fetch")
    discover_runs = lazy_method("cloudtrain.providers.azure.discover:discover_runs")
    backfill_logs = lazy_method("cloudtrain.providers.azure.status:backfill_logs")
    native_sweeps = lazy_method("cloudtrain.providers.azure.sweep:AzureSweeps")

    def poll_seconds(self, run: RunFolder) -> float:
        """Return the pause from the run's plan, in seconds."""
        return config_of(run).poll

    def infrastructure(self, settings: Settings, name: str, region: str) -> Infrastructure:
        """Return the ARM template and the deployment of that name."""
        if region:
            hint = "the deployment itself says where it is"
            raise UsageError("--region is for aws", hint=hint)

        from cloudtrain.providers.azure.infrastructure import AzureInfrastructure

        return AzureInfrastructure(settings, name)


PROVIDER = AzureMLProvider
"""Class that `get_provider` creates."""
