"""Find training jobs that cloudtrain started, from any machine."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any

from cloudtrain.catalog.pricing import RegionalPrices, known_prices
from cloudtrain.planning.launch import TAG_PREFIX
from cloudtrain.planning.sagemaker import GRACE_SECONDS, training_request
from cloudtrain.providers.aws import queue
from cloudtrain.providers.aws.attempts import Attempts, attempts_in_queue
from cloudtrain.providers.aws.config import AwsConfig, connect
from cloudtrain.providers.aws.declaration import DECLARATION
from cloudtrain.providers.aws.phases import (
    ended_at,
    instances_of,
    is_prepaid,
    timestamp,
    warm_pool_events,
)
from cloudtrain.providers.aws.request import SOURCE, channel_uri, uri_parts
from cloudtrain.providers.aws.results import trial_request
from cloudtrain.providers.aws.submit import job_reference, own_tag_values
from cloudtrain.providers.discovered_run import DiscoveredRun, KnownRuns, adopted
from cloudtrain.providers.shared.idempotent_create import own_tags
from cloudtrain.providers.shared.log_attempt import with_billing
from cloudtrain.runs.state_names import ENDED
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

QUEUED = "AWSBatch"
"""Beginning of the names of training jobs that a queue starts."""

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
    cloud = connect(region)
    poll_seconds = settings["aws.poll"]
    runs = list(_discovered_runs(cloud, run_id, poll_seconds, prices, known_runs))
    if queue_name := settings.get("aws.queue"):
        runs += _queued_runs(cloud, str(queue_name), run_id, poll_seconds, prices, known_runs)

    return runs


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
            # Ours has machines, unlike a serverless job, and a source. Of a job in a queue the
            # queue tells.
            is_queued = job["TrainingJobName"].startswith(QUEUED)
            if "ResourceConfig" in job and SOURCE in channels and not is_queued:
                yield _discovered_run(cloud, job, poll_seconds, prices)
    if account:
        known_runs.synced_until[account] = latest


def _discovered_run(
    cloud: AwsClient,
    job: Mapping[str, Any],
    poll_seconds: float,
    prices: RegionalPrices,
    queue_name: str = "",
) -> DiscoveredRun:
    tags = own_tag_values(job.get("Tags", []))
    name = job["TrainingJobName"]
    instance, nodes = instances_of(job)
    usd = known_prices(prices, [instance])
    if is_prepaid(job):
        usd = {instance: 0.0}

    config = AwsConfig(
        region=cloud.region,
        bucket=uri_parts(channel_uri(job, SOURCE))[0],
        prices=usd,
        poll=poll_seconds,
        queue=queue_name,
    )
    request = {key: job[key] for key in REQUEST_FIELDS if key in job}
    if "sweep" in tags:
        request = trial_request(request)

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
        updates=_updates(cloud, Attempts(dict(job)), prices),
    )


def _queued_runs(
    cloud: AwsClient,
    queue_name: str,
    run_id: str | None,
    poll_seconds: float,
    prices: RegionalPrices,
    known_runs: KnownRuns,
) -> Iterator[DiscoveredRun]:
    """Yield the jobs with our tags in a queue that are new or not over, or the job of `run_id`.

    Batch tells of tags only where it describes one job.
    """
    by = ("AFTER_CREATED_AT", "0")
    if run_id is not None:
        by = ("JOB_NAME", run_id)

    for summary in queue.listed(cloud, queue_name, *by):
        is_known = known_runs.states.get(summary["jobName"]) in ENDED
        if is_known and summary.get("status") in queue.ENDED:
            continue
        job = queue.describe(cloud, summary["jobArn"])
        if job is not None and own_tags(job.get("tags", {})).get("run") == job["jobName"]:
            body = training_request(job)
            if SOURCE in [item["ChannelName"] for item in body.get("InputDataConfig", [])]:
                yield _queued_run(cloud, queue_name, job, poll_seconds, prices)


def _queued_run(
    cloud: AwsClient,
    queue_name: str,
    job: Mapping[str, Any],
    poll_seconds: float,
    prices: RegionalPrices,
) -> DiscoveredRun:
    """Return the run of a service job: as the training job would be, with the phase of both."""
    arn = job["jobArn"]
    created = datetime.fromtimestamp(job.get("createdAt", 0) / 1000, UTC)
    training_job = {**training_request(job), "CreationTime": created, "TrainingJobArn": arn}
    run = _discovered_run(cloud, training_job, poll_seconds, prices, queue_name)

    return replace(
        run,
        request={
            **{name: job[name] for name in queue.NEEDED if name in job},
            "jobQueue": queue_name,
        },
        ref=queue.reference(cloud.region, run.run_id, arn),
        updates=_updates(cloud, attempts_in_queue(cloud, job), prices),
    )


def _usd_per_hour(prices: RegionalPrices, described: Mapping[str, Any]) -> float | None:
    instance, nodes = instances_of(described)
    price = prices.price_of(instance)
    return price.usd * nodes if price else None


def _updates(cloud: AwsClient, job: Attempts, prices: RegionalPrices) -> list[Event]:
    """Return the phase of a job and, if it is over, its end. Its log is read later."""
    time_now = time.time()
    updates: list[Event] = list(job.phases(time_now))

    final = job.final
    if final is not None:
        described = job.described or {}
        ended = Ended(time=ended_at(described) or time_now, state=final.state, reason=final.reason)
        updates.append(with_billing(ended, job.bill(cloud, partial(_usd_per_hour, prices))))
        updates += warm_pool_events(described, time_now, _usd_per_hour(prices, described))

    return updates
