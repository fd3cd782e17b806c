"""Wrap a CreateTrainingJob request for a queue of AWS Batch: the body of SubmitServiceJob. Pure.

After the API reference of SubmitServiceJob and the user guide of AWS Batch (service jobs).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from cloudtrain.errors import Issue
from cloudtrain.providers.aws.config import AwsConfig

if TYPE_CHECKING:
    from cloudtrain.planning.launch import Request
    from cloudtrain.planning.plan import Plan
    from cloudtrain.providers.aws.section import AwsSection
    from cloudtrain.spec.model import Limits


def attempts_of(limits: Limits) -> int:
    """Return how many training jobs of a run a queue starts at most that are billed.

    Batch repeats no failed job: SageMaker itself does that, within one time limit. A job that loses
    its machines to another share of the queue starts again, with a new time limit.
    """
    return 1 + limits.retries


def in_queue(request: Request, plan: Plan, section: AwsSection) -> Request:
    """Return the request that puts a training job into the queue of its plan."""
    body = request.document
    document: dict[str, Any] = {
        "jobName": body["TrainingJobName"],
        "jobQueue": plan.target.config_as(AwsConfig).queue,
        "serviceJobType": "SAGEMAKER_TRAINING",
        "serviceRequestPayload": json.dumps(body, ensure_ascii=False),
        # without these numbers Batch repeats a job without end
        "retryStrategy": {"attempts": 1},
        "preemptionConfiguration": {
            "preemptionRetriesBeforeTermination": attempts_of(plan.spec.limits) - 1,
        },
        "tags": {tag["Key"]: tag["Value"] for tag in body["Tags"]},
        "clientToken": body["TrainingJobName"],
    }
    if section.share:
        document["shareIdentifier"] = section.share
    if section.quota_share:
        document["quotaShareName"] = section.quota_share
    if section.priority is not None:
        document["schedulingPriority"] = section.priority

    return replace(request, document=document, wrapper="SubmitServiceJob")


def queue_issues(plan: Plan, section: AwsSection) -> Iterator[Issue]:
    """Yield an issue for each field that a queue rules out, or that means something only in a queue."""
    if not plan.target.config_as(AwsConfig).queue:
        for name in ("share", "quota_share", "priority"):
            if getattr(section, name) is not None:
                yield Issue(("aws", name), "has no meaning without a queue", "set aws.queue")
        return

    queue = plan.target.config_as(AwsConfig).queue
    if not re.fullmatch(r"[A-Za-z0-9][\w-]{0,127}", queue):
        yield Issue(
            ("aws", "queue"), f"{queue!r} is not the name of a queue", "its name, not its ARN"
        )

    hint = "leave one of them out"
    if section.share and section.quota_share:
        message = "cannot go with aws.quota_share: a queue has one kind of shares"
        yield Issue(("aws", "share"), message, hint)
    if section.keep_alive:
        message = "cannot go with aws.queue: kept machines are not counted by the queue"
        yield Issue(("aws", "keep_alive"), message, hint)

    # Batch asks for machines until there are some: a job that gave up waiting may come back.
    if plan.spec.resources.spot:
        message = "cannot go with aws.queue: it is not known how often Batch would start it again"
        yield Issue(("resources", "spot"), message, hint)
    if plan.spec.limits.max_wait is not None:
        message = "cannot be kept in aws.queue: the queue itself decides how long jobs wait"
        fix = "leave it out; jobStateTimeLimitActions of the queue limit the wait"
        yield Issue(("limits", "max_wait"), message, fix)
