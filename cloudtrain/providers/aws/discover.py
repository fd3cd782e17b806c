"""Find training jobs that cloudtrain started, from any machine."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from cloudtrain.catalog.pricing import RegionalPrices, known_prices
from cloudtrain.planning.launch import TAG_PREFIX
from cloudtrain.planning.sagemaker import GRACE_SECONDS
from cloudtrain.providers.aws.config import AwsConfig, connect
from cloudtrain.providers.aws.declaration import DECLARATION
from cloudtrain.providers.aws.phases import (
    billing,
    ended_at,
    final_state,
    instances_of,
    is_prepaid,
    phase_event,
    timestamp,
    warm_pool_events,
)
from cloudtrain.providers.aws.request import SOURCE, channel_uri, uri_parts
from cloudtrain.providers.aws.results import trial_request
from cloudtrain.providers.aws.submit import job_reference, own_tag_values
from cloudtrain.providers.discovered_run import DiscoveredRun, KnownRuns, adopted
from cloudtrain.providers.shared.log_attempt import with_billing
from cloudtrain_wire.events import Ended, Event

if TYPE_CHECKING:
    from cloudtrain.providers.aws.client import AwsClient
    from cloudtrain.settings import Settings

REQUEST_FIELDS = (
    "TrainingJobName",
    "RoleArn",
    "AlgorithmSpecification",
    "InputDataConfig",
    "OutputDataConfig",
    "ResourceConfig",
    "StoppingCondition",
    "CheckpointConfig",
    "Environment",
    "EnableManagedSpotTraining",
    "VpcConfig",
)
"""Fields of a request that the description of a job repeats."""

MAX_RESULTS = 100
"""Jobs per page of a Search; SageMaker's default is 10."""

SEARCH_LAG_SECONDS = 600
"""Maximum lag of search results; SageMaker documents no bound."""


def discover_runs(
    settings: Settings, run_id: str | None, known_runs: KnownRuns
) -> list[DiscoveredRun]:
    """List jobs with our tags in the region of the settings."""
    from cloudtrain.catalog.regional_prices import regional_prices
    from cloudtrain.providers.aws.account import region_of

    region = region_of(settings)
    prices = regional_prices("aws", region, settings)
    return list(_discovered_runs(connect(region), run_id, settings["aws.poll"], prices, known_runs))


def _discovered_runs(
    cloud: AwsClient,
    run_id: str | None,
    poll_seconds: float,
    prices: RegionalPrices,
    known_runs: KnownRuns,
) -> Iterator[DiscoveredRun]:
    """Yield new and changed jobs with our tags in a region, or the job named `run_id`.

    Updates `known_runs.synced_until` when the search is complete.
    """
    filters = [{"Name": f"Tags.{TAG_PREFIX}run", "Operator": "Exists"}]
    account = ""

    latest = 0.0
    if run_id is not None:
        filters.append({"Name": "TrainingJobName", "Operator": "Equals", "Value": run_id})
    else:
        account = f"aws {cloud.call('sts', 'get_caller_identity')['Account']} {cloud.region}"
        latest = known_runs.synced_until.get(account, 0.0)
        if latest:
            since = datetime.fromtimestamp(latest - SEARCH_LAG_SECONDS, UTC)
            filters.append(
                {
                    "Name": "LastModifiedTime",
                    "Operator": "GreaterThanOrEqualTo",
                    "Value": since.strftime("%Y-%m-%dT%H:%M:%S"),
                }
            )

    search = {
        "Resource": "TrainingJob",
        "SearchExpression": {"Filters": filters},
        "SortBy": "LastModifiedTime",
        "SortOrder": "Descending",
        "MaxResults": MAX_RESULTS,
    }
    for page in cloud.pages("sagemaker", "search", **search):
        for result in page.get("Results", []):
            job = result["TrainingJob"]
            latest = max(latest, timestamp(job.get("LastModifiedTime")))
            channels = [item["ChannelName"] for item in job.get("InputDataConfig", [])]
            # Ours has machines, unlike a serverless job, and a source.
            if "ResourceConfig" in job and SOURCE in channels:
                yield _discovered_run(cloud, job, poll_seconds, prices)
    if account:
        known_runs.synced_until[account] = latest


def _discovered_run(
    cloud: AwsClient,
    job: Mapping[str, Any],
    poll_seconds: float,
    prices: RegionalPrices,
) -> DiscoveredRun:
    tags = own_tag_values(job.get("Tags", []))
    instance, nodes = instances_of(job)
    usd = known_prices(prices, [instance])
    if is_prepaid(job):
        usd = {instance: 0.0}

    usd_per_hour = None
    if instance in usd:
        usd_per_hour = usd[instance] * nodes

    config = AwsConfig(
        region=cloud.region,
        bucket=uri_parts(channel_uri(job, SOURCE))[0],
        prices=usd,
        poll=poll_seconds,
    )
    request = {key: job[key] for key in REQUEST_FIELDS if key in job}
    if "sweep" in tags:
        request = trial_request(request)

    name = job["TrainingJobName"]
    submitting = adopted(
        DECLARATION,
        tags,
        title=tags.get("name", name),
        owner=tags.get("owner", ""),
        nodes=nodes,
        created=timestamp(job.get("CreationTime")),
    )
    return DiscoveredRun(
        run_id=name,
        config=config,
        instance=instance,
        grace_seconds=GRACE_SECONDS,
        request={**request, "Tags": job.get("Tags", [])},
        submitting=submitting,
        ref=job_reference(cloud.region, name, job["TrainingJobArn"]),
        mlflow_run=tags.get("mlflow-run", ""),
        spot=bool(job.get("EnableManagedSpotTraining")),
        updates=_updates(job, usd_per_hour),
    )


def _updates(job: Mapping[str, Any], usd_per_hour: float | None) -> list[Event]:
    """Return the phase of a job and, if it is over, its end. Its log is read later."""
    time_now = time.time()
    updates: list[Event] = [phase_event(job, time_now)]

    final = final_state(job)
    if final is not None:
        ended = Ended(time=ended_at(job) or time_now, state=final.state, reason=final.reason)
        updates.append(with_billing(ended, billing(job, usd_per_hour)))
        updates += warm_pool_events(job, time_now, usd_per_hour)

    return updates
