"""Jobs of ours that another machine started, found by their tags, as run folders of this one."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from cloudtrain import __version__
from cloudtrain.catalog.pricing import price_of
from cloudtrain.contracts.sagemaker import GRACE_SECONDS
from cloudtrain.providers import DiscoveredRun, KnownRuns
from cloudtrain.providers.aws.config import AwsConfig
from cloudtrain.providers.aws.phases import billing, ended_at, ending, kept_event, machines_of, phase_event, seconds
from cloudtrain.providers.aws.request import uri_parts
from cloudtrain.providers.aws.submit import ref_of
from cloudtrain.providers.cloud.request import OURS, ours
from cloudtrain.runs.files import as_text

if TYPE_CHECKING:
    from cloudtrain.providers.aws.client import Aws

_REQUEST = (
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
"""Fields of a request that a description repeats."""


MOST_RESULTS = 100
"""Of one Search; 10 where the request does not say."""
LAG_SECONDS = 600
"""A search may not know yet what changed a moment ago: so much is looked at again. (No page says how long it lags.)"""


def discovered_runs(cloud: Aws, run_id: str | None, pause: float, known: KnownRuns) -> Iterator[DiscoveredRun]:
    """The jobs of ours in a region that are new or have changed since the last time, or the one of that name."""
    filters = [{"Name": f"Tags.{OURS}run", "Operator": "Exists"}]
    place, latest = "", 0.0
    if run_id is not None:
        filters.append({"Name": "TrainingJobName", "Operator": "Equals", "Value": run_id})
    else:
        place = f"aws {cloud.call('sts', 'get_caller_identity')['Account']} {cloud.region}"
        latest = known.synced_until.get(place, 0.0)
        if latest:
            since = datetime.fromtimestamp(latest - LAG_SECONDS, UTC).strftime("%Y-%m-%dT%H:%M:%S")
            filters.append({"Name": "LastModifiedTime", "Operator": "GreaterThanOrEqualTo", "Value": since})
    question = {
        "Resource": "TrainingJob",
        "SearchExpression": {"Filters": filters},
        "SortBy": "LastModifiedTime",
        "SortOrder": "Descending",
        "MaxResults": MOST_RESULTS,
    }
    for page in cloud.pages("sagemaker", "search", **question):
        for result in page.get("Results", []):
            job = result["TrainingJob"]
            latest = max(latest, seconds(job.get("LastModifiedTime")))
            if "ResourceConfig" in job:  # a serverless job has no machines, and is none of ours
                yield _discovered_run(cloud, job, pause)
    if place:  # all of them were told
        known.synced_until[place] = latest


def _discovered_run(cloud: Aws, job: Mapping[str, Any], pause: float) -> DiscoveredRun:
    tags = ours({tag["Key"]: tag["Value"] for tag in job.get("Tags", [])})
    kind, nodes = machines_of(job)
    body = {key: job[key] for key in _REQUEST if key in job}
    body["Tags"] = job.get("Tags", [])
    name = job["TrainingJobName"]
    price = price_of("aws", [kind], cloud.region)
    config = AwsConfig(
        region=cloud.region,
        bucket=uri_parts(job["OutputDataConfig"]["S3OutputPath"])[0],
        prices={kind: price.usd} if price else {},
        poll=pause,
    )
    facts = {**config.to_json(), "instances": [kind]}
    plan = {
        "version": __version__,
        "run_id": name,
        "provider": "aws",
        "host": None,
        "spec": {"name": tags.get("name", name)},
        "target": {"provider": "aws", "contract": "sagemaker", "grace_seconds": GRACE_SECONDS, "facts": facts},
        "adopted": time.time(),
    }
    born = {
        "type": "submitting",
        "adopted": True,
        "owner": tags.get("owner", ""),
        "time": seconds(job.get("CreationTime")) or time.time(),
        "name": tags.get("name", name),
        "provider": "aws",
        "contract": "sagemaker",
        "nodes": nodes,
        "processes": int(tags["processes"]) if tags.get("processes", "").isdecimal() else 1,
    }
    submitted = {"type": "submitted", "time": time.time(), "ref": ref_of(cloud, job)}
    updates = [phase_event(job, time.time())]
    over = ending(job)
    if over is not None:  # its log is brought when somebody wants to see it
        when = ended_at(job) or time.time()
        bill = billing(job, price.usd * nodes if price else None)
        updates.append({"type": "ended", "time": when, "state": over[0], "reason": over[1], "billing": bill})
        updates += kept_event(job, time.time(), price.usd * nodes if price else None)
    documents = {"plan.json": as_text(plan), "request.json": as_text(body)}
    return DiscoveredRun(run_id=name, documents=documents, history=[born, submitted], updates=updates)
