"""Queues of AWS Batch for training jobs, after its service model, API reference and user guide.

If these leave something open, the imitation acts to the disadvantage of a client: a token rejects
only a repeated request, several jobs may have one name, and an answer has only documented members.
"""

from __future__ import annotations

import json
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from typing import Any

from cloudtrain.errors import dotted
from cloudtrain.providers.shared.shapes import violations
from tests.fakes.aws.jobs import Job
from tests.fakes.aws.service_models import service_model
from tests.fakes.messages import ServiceError

Document = dict[str, Any]
PREFIX = "AWSBatch"
MAX_NAME = 63
"""Length of a training job's name. The makers' own jobs have longer names before the prefix."""
PAGE = 100
STATUSES = {
    "Starting": "SCHEDULED",
    "Pending": "SCHEDULED",
    "Downloading": "STARTING",
    "Completed": "SUCCEEDED",
    "Failed": "FAILED",
    "Stopped": "FAILED",
    "MaxRuntimeExceeded": "FAILED",
}
"""Secondary status of a training job -> status of its service job (user guide)."""


def refused(message: str) -> ServiceError:
    """Return the error of Batch for each mistake of a caller."""
    return ServiceError("ClientException", message)


class ServiceJob:
    """One service job: its request, and the training jobs that Batch has started for it."""

    def __init__(self, body: Document, arn: str) -> None:
        self.body = body
        self.name = str(body["jobName"])
        self.arn = arn
        self.tags = dict(body.get("tags", {}))
        self.created = time.time()
        self.attempts: list[Job] = []
        self.preempted: list[Job] = []
        self.is_terminated = False
        self.reason = ""
        self.is_failed = False
        """It ended without, or after, its training jobs."""

    @property
    def status(self) -> str:
        """Return the status in the queue, or by the last training job."""
        if self.is_failed:
            return "FAILED"
        if not self.attempts or self.attempts[-1] in self.preempted:
            return "RUNNABLE"
        return STATUSES.get(self.attempts[-1]["SecondaryStatus"], "RUNNING")

    @property
    def has_ended(self) -> bool:
        """Return whether its status is final, and its last machines are gone."""
        is_over = self.status in ("SUCCEEDED", "FAILED")
        return is_over and all(job.has_ended for job in self.attempts)

    def summary(self) -> Document:
        """Return its entry in a list, without tags and request."""
        answer = {
            "jobArn": self.arn,
            "jobId": self.arn.rpartition("/")[2],
            "jobName": self.name,
            "serviceJobType": self.body["serviceJobType"],
            "status": self.status,
            "createdAt": int(self.created * 1000),
        }
        if self.attempts:
            answer["latestAttempt"] = _attempt(self.attempts[-1])
        return answer

    def describe(self, queue_arn: str) -> Document:
        """Return DescribeServiceJob's answer."""
        kept = [job for job in self.attempts if job not in self.preempted]
        sent = {key: self.body[key] for key in self.body if key not in ("clientToken", "jobQueue")}
        answer = {**sent, **self.summary(), "jobQueue": queue_arn, "attempts": []}
        answer["startedAt"] = int(self.created * 1000)
        answer["attempts"] = [_ended_attempt(job) for job in kept if job.has_ended]
        answer["isTerminated"] = self.is_terminated
        if self.reason:
            answer["statusReason"] = self.reason
        if self.preempted:
            answer["preemptionSummary"] = {
                "preemptedAttemptCount": len(self.preempted),
                "recentPreemptedAttempts": [_ended_attempt(job) for job in self.preempted],
            }
        return answer


def _attempt(job: Job) -> Document:
    return {"serviceResourceId": {"name": "TrainingJobArn", "value": job["TrainingJobArn"]}}


def _ended_attempt(job: Job) -> Document:
    return {**_attempt(job), "startedAt": int(job.created * 1000)}


class Batch:
    """The queues of an account. `launch` starts a training job, as CreateTrainingJob does."""

    def __init__(self, region: str, account: str, launch: Callable[[Document], Job]) -> None:
        self._arn = f"arn:aws:batch:{region}:{account}"
        self._launch = launch
        self._lock = threading.RLock()
        self.model = service_model("batch")
        self.queues: dict[str, Document] = {}
        """Description of each queue, by its name."""
        self.machines = 100
        """Machines that jobs of all queues may have at once."""
        self.jobs: dict[str, ServiceJob] = {}
        """Service jobs by ARN, the oldest first."""
        self.operations: dict[str, Callable[[Document], Document]] = {
            "SubmitServiceJob": self._submit,
            "DescribeServiceJob": self._describe,
            "ListServiceJobs": self._list,
            "TerminateServiceJob": self._terminate,
            "GetJobQueueSnapshot": self._snapshot,
            "DescribeJobQueues": self._queues,
        }

    def add_queue(self, name: str, **members: Any) -> None:
        """Create a queue of training jobs."""
        self.queues[name] = {
            "jobQueueName": name,
            "jobQueueArn": f"{self._arn}:job-queue/{name}",
            "jobQueueType": "SAGEMAKER_TRAINING",
            "state": "ENABLED",
            "status": "VALID",
            "priority": 1,
            "computeEnvironmentOrder": [],
            **members,
        }

    def call(self, operation: str, body: Mapping[str, Any]) -> Document:
        """Answer a call. Raise ServiceError if it is refused."""
        if operation not in self.operations:
            raise refused(f"Not part of this imitation: {operation}")
        shape = self.model.operation_model(operation).input_shape
        if problems := violations(shape, dict(body)):
            raise refused(f"{dotted(problems[0].path)}: {problems[0].message}")
        with self._lock:
            self._dispatch()
            return self.operations[operation](dict(body))

    def named(self, name: str) -> ServiceJob | None:
        """Return the newest job of a name."""
        return next((job for job in reversed(list(self.jobs.values())) if job.name == name), None)

    def preempt(self, name: str) -> None:
        """Give the machines of a job to another share, and put it back into the queue, or end it."""
        with self._lock:
            job = self.named(name)
            assert job is not None
            job.attempts[-1].stop()
            job.attempts[-1].finish("Stopped", "Stopped")
            job.preempted.append(job.attempts[-1])
            allowed = job.body["preemptionConfiguration"]["preemptionRetriesBeforeTermination"]
            job.reason = "Cross-share preemption triggered to reclaim borrowed capacity"
            job.is_failed = len(job.preempted) > allowed

    def _dispatch(self) -> None:
        """Start training jobs while there are machines, the oldest first."""
        busy = sum(job.status in ("SCHEDULED", "STARTING", "RUNNING") for job in self.jobs.values())
        for job in self.jobs.values():
            if job.status != "RUNNABLE" or busy >= self.machines:
                continue
            body = json.loads(job.body["serviceRequestPayload"])
            digits = uuid.uuid4().hex
            room = MAX_NAME - len(PREFIX) - len(digits)
            name = f"{PREFIX}{body['TrainingJobName'][:room].rstrip('-')}{digits}"
            try:
                job.attempts.append(self._launch({**body, "TrainingJobName": name}))
            except ServiceError as error:
                job.is_failed = True
                job.reason = f"Received status from SageMaker: {error.message}"
            busy += 1

    def _submit(self, body: Document) -> Document:
        queue = self.queues.get(body["jobQueue"])
        if queue is None or queue["state"] != "ENABLED":
            raise refused(f"Job queue {body['jobQueue']} is not available.")
        if bool(queue.get("schedulingPolicyArn")) != (
            "shareIdentifier" in body or "quotaShareName" in body
        ):
            raise refused("The share does not fit the scheduling policy of the queue.")
        if any(job.body == body for job in self.jobs.values()):
            raise refused("A request with this client token was received before.")
        arn = f"{self._arn}:service-job/{uuid.uuid4()}"
        job = self.jobs[arn] = ServiceJob(body, arn)
        return {"jobArn": arn, "jobName": job.name, "jobId": arn.rpartition("/")[2]}

    def _describe(self, body: Document) -> Document:
        job = self._job(body)
        return job.describe(self.queues[job.body["jobQueue"]]["jobQueueArn"])

    def _job(self, body: Document) -> ServiceJob:
        for arn, job in self.jobs.items():
            if body["jobId"] in (arn, arn.rpartition("/")[2]):
                return job
        raise refused(f"Service job {body['jobId']} not found.")

    def _list(self, body: Document) -> Document:
        """List the newest first. Without a filter only jobs that run are listed."""
        (wish,) = body.get("filters", [{"name": "RUNNING", "values": [""]}])
        value = wish["values"][0]
        tests: dict[str, Callable[[ServiceJob], bool]] = {
            "JOB_NAME": lambda job: job.name.lower() == value.lower(),
            "AFTER_CREATED_AT": lambda job: job.created * 1000 > int(value),
            "RUNNING": lambda job: job.status == "RUNNING",
        }
        matches = tests[wish["name"]]
        found = [job for job in self.jobs.values() if job.body["jobQueue"] == body["jobQueue"]]
        found = [job for job in reversed(found) if matches(job)]
        start = int(body.get("nextToken", 0))
        answer: Document = {
            "jobSummaryList": [job.summary() for job in found[start : start + PAGE]]
        }
        if len(found) > start + PAGE:
            answer["nextToken"] = str(start + PAGE)
        return answer

    def _terminate(self, body: Document) -> Document:
        job = self._job(body)
        if job.status in ("SUCCEEDED", "FAILED"):
            raise refused("The job has ended.")
        job.is_terminated = True
        job.reason = body["reason"]
        if job.attempts and not job.attempts[-1].has_ended:
            if not job.attempts[-1].stop_asked.is_set():
                job.attempts[-1].stop()
        else:
            job.is_failed = True
        return {}

    def _snapshot(self, body: Document) -> Document:
        waiting = [
            {"jobArn": job.arn, "earliestTimeAtPosition": int(job.created * 1000)}
            for job in self.jobs.values()
            if job.status == "RUNNABLE" and job.body["jobQueue"] == body["jobQueue"]
        ]
        return {"frontOfQueue": {"jobs": waiting[:100], "lastUpdatedAt": int(time.time() * 1000)}}

    def _queues(self, body: Document) -> Document:
        found = [self.queues[name] for name in body["jobQueues"] if name in self.queues]
        return {"jobQueues": found}
