"""Imitated clouds that keep every job in its first phase, behind one interface for both clouds."""

from __future__ import annotations

import json
import re
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from dataclasses import fields as dataclass_fields
from functools import cache, partial
from pathlib import Path
from typing import Any

import botocore.loaders
import pytest

import cloudtrain
from cloudtrain.api.run import Run
from cloudtrain.planning.azureml import STOP_FILE
from cloudtrain.providers.shared.idempotent_create import Attempt
from tests.fakes.aws.cloud import Cloud
from tests.fakes.azure.cloud import AzureCloud, cheap_clients
from tests.fakes.azure.jobs import Job
from tests.fakes.messages import ServiceError
from tests.providers.aws.archives import entry, packed
from tests.providers.aws.operations import CALLS, write_log
from tests.providers.aws.operations import JOB as AWS_JOB
from tests.providers.azure.operations import JOB as AZURE_JOB
from tests.providers.azure.operations import SUBMIT_CALLS as AZURE_CALLS
from tests.providers.azure.operations import (
    append_log,
    append_outcome,
    forget,
    log_of,
    reconnect,
)
from tests.providers.faults import Do, NthCall
from tests.support.command_line import CommandLine
from tests.support.samples import without

PROVIDERS = ("aws", "azure")
JOBS: Mapping[str, Mapping[str, Any]] = {"aws": AWS_JOB, "azure": AZURE_JOB}
ALWAYS = 200
"""More often than a client asks."""
CREATE_TIMEOUT = "cloudtrain.providers.shared.idempotent_create.CREATE_TIMEOUT_SECONDS"
NEW_JOB = "cloudtrain.providers.shared.idempotent_create.NEW_JOB_SECONDS"

create_loader = cache(botocore.loaders.create_loader)
"""Loader of service models, shared by all clients of boto3."""


_STRIKE = re.compile(r"(\w+):(\w+?)(?:@(\d+))?(?:x(\d+))?")


def strikes_of(text: str) -> Iterator[tuple[str, Any, int, int]]:
    """Yield call, kind, first number and count of strikes: `create:lost@2x9 look:unseen`."""
    for word in text.split():
        match = _STRIKE.fullmatch(word)
        assert match, word
        yield match[1], match[2], int(match[3] or 1), int(match[4] or 1)


@dataclass(frozen=True, kw_only=True)
class Site(ABC):
    """One imitated cloud and the calls of its client."""

    provider: str
    service: str
    """The service as messages name it."""
    cloud: Any
    job: Mapping[str, Any]
    calls: Mapping[str, tuple[str, str]]
    """`create` creates the job, `look` and `tags` look for it, `prepare` comes before, `observe`
    and `log` after it, `list` lists jobs; `tell` and `stop` stop one.
    """
    looks_before: int
    """Number of calls `look` that a submit makes before it creates the job."""
    observing: Sequence[tuple[str, str]]
    """Calls of a look at a job with a log; the last two read the log."""
    stopping: Sequence[NthCall]
    """Calls of a stop of a job that runs; the last one ends it."""
    hints: Mapping[str, str]
    """Words of the hint after a permanent fault."""

    def strike(self, text: str) -> None:
        """Inject faults into the next submit; skip calls that this cloud lacks.

        `create:lost@2x9 look:unseen`: nine creations are lost from the second on, and so on.
        """
        for call, kind, nth, times in strikes_of(text):
            if call in self.calls:
                first = nth + (self.looks_before if call == "look" else 0)
                self.cloud.endpoint.fault(kind, *self.calls[call], nth=first, times=times)

    def submit(self, run_id: str, data_dir: str | None = None, **fields: Any) -> Run:
        """Submit the job of this site."""
        job = cloudtrain.load({**self.job, **fields})
        return cloudtrain.submit(
            cloudtrain.plan(job, self.provider, run_id=run_id, data_dir=data_dir)
        )

    def submit_as(self, user: str, run_id: str) -> Run:
        """Submit the job of this site as another user."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("LOGNAME", user)
            return self.submit(run_id)

    def command_line(self, folder: Path) -> CommandLine:
        """Return the command line in a folder with the job."""
        cli = CommandLine(
            folder / "workspace", env=self.cloud.environment(), modules=("warm_sdks",)
        )
        cli.write(job_yaml=json.dumps(self.job), train_py=f"print('never run', {str(folder)!r})\n")
        return cli

    def job_names(self) -> set[str]:
        """Return the names of all jobs that the cloud knows."""
        return set(self.cloud.service.jobs)

    def forget_job(self, run_id: str) -> None:
        """Have the cloud forget a job, so that lists of jobs stay short."""
        self.cloud.service.jobs.pop(run_id, None)

    @abstractmethod
    def reconnect(self) -> None:
        """Have the client forget its connections, as a new process would."""

    @abstractmethod
    def create_job(self, request: dict[str, Any], folder: Path) -> None:
        """Create the job of a request; its source may lie in the folder."""

    @abstractmethod
    def end_job(self, run_id: str) -> None:
        """Have the cloud stop a job, if there is one."""

    @abstractmethod
    def is_told_to_stop(self, run_id: str) -> bool:
        """Return whether the cloud has heard that a job is to end."""

    @abstractmethod
    def operations(self) -> dict[str, Do]:
        """Submit a job; return the client's calls of this cloud."""

    @abstractmethod
    def start_job(self, run_id: str) -> None:
        """Have the nodes of a job run."""

    @abstractmethod
    def finish_job(self, run_id: str) -> None:
        """Have a job succeed."""

    @abstractmethod
    def end_as(self, run_id: str, how: str) -> None:
        """Have a job end by itself: `succeeded`, `failed`, or `evicted` by its platform."""

    @abstractmethod
    def ended_by_status(self, run_id: str) -> str:
        """Return the final state of a job that is over by the cloud's own word for it."""

    def ended_as_run(self, run_id: str) -> str:
        """Return the final state of a job that is over, by what its nodes have said too."""
        return self.ended_by_status(run_id)

    @abstractmethod
    def save_if_told(self, run_id: str) -> None:
        """Have a job that runs save and end if it finds a file that tells it to stop."""

    @abstractmethod
    def add_job_of_stranger(self, name: str, like: str, *, copies_tags: bool) -> None:
        """Create a job that is not of this project, like one that is."""

    def is_over(self, run_id: str) -> bool:
        """Return whether the state of a job is final."""
        return bool(self.cloud.service.jobs[run_id].has_ended)

    def tags_by_name(self, run_id: str) -> dict[str, str]:
        """Return the tags of a job."""
        return dict(self.cloud.service.jobs[run_id].tags)

    @abstractmethod
    def write_log(self, run_id: str, node: int, *lines: str) -> None:
        """Append lines to the log of a node."""

    @abstractmethod
    def put_model(self, run_id: str, **files: str) -> None:
        """Store the model of a run."""


class AwsSite(Site):
    """SageMaker."""

    def reconnect(self) -> None:
        from cloudtrain.providers.aws.client import aws

        aws.cache_clear()

    def create_job(self, request: dict[str, Any], folder: Path) -> None:
        from cloudtrain.providers.aws.client import aws

        aws(self.cloud.region).call("sagemaker", "create_training_job", **request)

    def end_job(self, run_id: str) -> None:
        job = self.cloud.service.jobs.get(run_id)
        with suppress(ServiceError):  # it has ended already
            if job is not None:
                job.stop()

    def is_told_to_stop(self, run_id: str) -> bool:
        return bool(self.job_of(run_id).stop_asked.is_set())

    def job_of(self, run_id: str) -> Any:
        """Return the training job of a run, as the imitation has it."""
        return self.cloud.service.jobs[run_id]

    def name_of(self, run_id: str) -> str:
        """Return the name of a run's training job, which may be over long ago."""
        return run_id

    def operations(self) -> dict[str, Do]:
        from tests.providers.aws.operations import OPERATIONS

        run = self.submit(f"there-{time.time_ns()}")
        return {
            name: partial(operation.do, self.cloud, run)
            for name, operation in OPERATIONS.items()
            if name != "push an image"
        }

    def start_job(self, run_id: str) -> None:
        self.job_of(run_id).enter("Training")

    def finish_job(self, run_id: str) -> None:
        self.job_of(run_id).finish("Completed", "Completed")

    def end_as(self, run_id: str, how: str) -> None:
        ends = {
            "succeeded": ("Completed", "Completed"),
            "failed": ("Failed", "Failed", "AlgorithmError: , exit code: 3"),
            "evicted": ("Stopped", "MaxRuntimeExceeded"),
        }
        self.job_of(run_id).finish(*ends[how])

    def ended_by_status(self, run_id: str) -> str:
        states = {"Completed": "succeeded", "Failed": "failed", "Stopped": "stopped"}
        return states[self.job_of(run_id)["TrainingJobStatus"]]

    def save_if_told(self, run_id: str) -> None:
        """Its nodes get a signal."""

    def add_job_of_stranger(self, name: str, like: str, *, copies_tags: bool) -> None:
        body = {**self.cloud.service.jobs[like].body, "TrainingJobName": name}
        if copies_tags:  # without our source
            first, *others = body["InputDataConfig"]
            body["InputDataConfig"] = [{**first, "ChannelName": "their-source"}, *others]
        else:
            del body["Tags"]
        self.cloud.service.call("CreateTrainingJob", body)

    def write_log(self, run_id: str, node: int, *lines: str) -> None:
        write_log(self.cloud, self.name_of(run_id), node, *lines)

    def put_model(self, run_id: str, **files: str) -> None:
        archive = packed(*(entry(name, text=text) for name, text in files.items()))
        self.cloud.put(f"cloudtrain/runs/{self.output_of(run_id)}/output/model.tar.gz", archive)

    def output_of(self, run_id: str) -> str:
        """Return the folder with the model of a job, below the folder of all runs."""
        return self.name_of(run_id)


class QueueSite(AwsSite):
    """SageMaker behind a queue of AWS Batch, which starts each job at once."""

    def job_of(self, run_id: str) -> Any:
        return self._queued(run_id).attempts[-1]

    def name_of(self, run_id: str) -> str:
        return str(self.job_of(run_id).name)

    def output_of(self, run_id: str) -> str:
        return f"{run_id}/{self.name_of(run_id)}"

    def _queued(self, run_id: str) -> Any:
        """Return the service job of a run. Batch starts it at its next call."""
        self.cloud.service.batch.call("DescribeJobQueues", {"jobQueues": []})
        return self.cloud.service.batch.named(run_id)

    def job_names(self) -> set[str]:
        return {job.name for job in self.cloud.service.batch.jobs.values()}

    def forget_job(self, run_id: str) -> None:
        jobs = self.cloud.service.batch.jobs
        for arn in [arn for arn, job in jobs.items() if job.name == run_id]:
            for attempt in jobs.pop(arn).attempts:
                self.cloud.service.jobs.pop(attempt.name, None)

    def end_job(self, run_id: str) -> None:
        job = self._queued(run_id)
        with suppress(ServiceError):  # it has ended already
            self.cloud.service.batch.call("TerminateServiceJob", {"jobId": job.arn, "reason": "-"})

    def is_told_to_stop(self, run_id: str) -> bool:
        return bool(self._queued(run_id).is_terminated)

    def is_over(self, run_id: str) -> bool:
        return bool(self._queued(run_id).has_ended)

    def tags_by_name(self, run_id: str) -> dict[str, str]:
        return dict(self._queued(run_id).tags)

    def add_job_of_stranger(self, name: str, like: str, *, copies_tags: bool) -> None:
        body = {**self._queued(like).body, "jobName": name, "clientToken": name}
        if not copies_tags:
            del body["tags"]
        self.cloud.service.batch.call("SubmitServiceJob", body)


class AzureSite(Site):
    """Azure ML."""

    def reconnect(self) -> None:
        reconnect()

    def create_job(self, request: dict[str, Any], folder: Path) -> None:
        from cloudtrain.providers.azure.client import workspace

        code = folder / "code"
        code.mkdir()
        (code / "source.tar.gz").write_bytes(str(folder).encode())
        account = self.cloud.account
        at = workspace(account.subscription, account.resource_group, account.workspace)
        at.create({**request, "code": str(code)}, Attempt(lambda _: None))

    def end_job(self, run_id: str) -> None:
        job = self.cloud.service.jobs.get(run_id)
        if job is not None:
            job.cancel()

    def is_told_to_stop(self, run_id: str) -> bool:
        return bool(self.cloud.service.jobs[run_id].cancel_asked.is_set())

    def operations(self) -> dict[str, Do]:
        from tests.providers.azure.operations import OPERATIONS, Operation, submit

        run = submit(self.cloud, None)  # type: ignore[arg-type]

        def do(operation: Operation) -> None:
            self.reconnect()
            operation.do(self.cloud, run)

        return {
            name: partial(do, operation)
            for name, operation in OPERATIONS.items()
            if name not in ("push an image", "doctor")
        }

    def start_job(self, run_id: str) -> None:
        self.cloud.service.jobs[run_id].enter("Running")

    def finish_job(self, run_id: str) -> None:
        self.cloud.service.jobs[run_id].finish("Completed")

    def end_as(self, run_id: str, how: str) -> None:
        job = self.cloud.service.jobs[run_id]
        if how == "evicted":
            append_outcome(self.cloud, run_id, 0, "stopped", why="sigterm")
            append_outcome(self.cloud, run_id, 1, "succeeded")
        job.finish("Failed" if how == "failed" else "Completed")

    def ended_by_status(self, run_id: str) -> str:
        states = {"Completed": "succeeded", "Failed": "failed", "Canceled": "stopped"}
        return states[self.cloud.service.jobs[run_id].status]

    def ended_as_run(self, run_id: str) -> str:
        state = self.ended_by_status(run_id)
        container, blob = log_of(self.cloud, run_id, 0)
        has_stopped = b'"outcome": "stopped"' in (container.read(blob) or b"")
        return "stopped" if state == "succeeded" and has_stopped else state

    def save_if_told(self, run_id: str) -> None:
        if self.cloud.blobs(f"cloudtrain/runs/{run_id}/output/{STOP_FILE}"):
            for node in range(2):
                append_outcome(self.cloud, run_id, node, "stopped", why="stop_file")
            self.cloud.service.jobs[run_id].finish("Completed")

    def add_job_of_stranger(self, name: str, like: str, *, copies_tags: bool) -> None:
        original = self.cloud.service.jobs[like]
        properties = {**original.properties, "tags": original.tags if copies_tags else {}}
        job = Job(name, {"properties": properties}, vm_size=original.vm_size, low_priority=False)
        self.cloud.service.jobs[name] = job

    def write_log(self, run_id: str, node: int, *lines: str) -> None:
        append_log(self.cloud, run_id, node, *lines)

    def put_model(self, run_id: str, **files: str) -> None:
        for name, text in files.items():
            self.cloud.put(f"cloudtrain/runs/{run_id}/model/{name}", text.encode())


QUEUE = "team"
"""Queue of the imitated account."""
SUBMIT_CALLS: Mapping[str, Sequence[NthCall]] = {"aws": CALLS, "azure": AZURE_CALLS}
"""Calls of a submit."""
OWN_VARIABLES = {"aws": ("AWS_",), "azure": ("AZURE_", "ARM_", "AZUREML_", "MSI_", "IDENTITY_")}


def _aws_site(cloud: Cloud) -> Site:
    return AwsSite(
        provider="aws",
        service="SageMaker",
        cloud=cloud,
        job=JOBS["aws"],
        calls={
            "prepare": ("s3", "PutObject"),
            "create": ("sagemaker", "CreateTrainingJob"),
            "look": ("sagemaker", "DescribeTrainingJob"),
            "tags": ("sagemaker", "ListTags"),
            "observe": ("sagemaker", "DescribeTrainingJob"),
            "list": ("sagemaker", "Search"),
            "log": ("logs", "GetLogEvents"),
            "stop": ("sagemaker", "StopTrainingJob"),
        },
        looks_before=0,
        observing=(
            ("sagemaker", "DescribeTrainingJob"),
            ("logs", "DescribeLogStreams"),
            ("logs", "GetLogEvents"),
        ),
        stopping=(("sagemaker", "StopTrainingJob", 1),),
        hints={
            "expired": "aws sso login",
            "denied": "permission",
            "stop": "sagemaker:StopTrainingJob",
        },
    )


def _queue_site(cloud: Cloud) -> Site:
    cloud.service.batch.add_queue(QUEUE)
    site = _aws_site(cloud)
    calls = {
        "create": ("batch", "SubmitServiceJob"),
        "look": ("batch", "ListServiceJobs"),
        "tags": ("batch", "DescribeServiceJob"),
        "observe": ("batch", "DescribeServiceJob"),
        "list": ("batch", "ListServiceJobs"),
        "stop": ("batch", "TerminateServiceJob"),
    }
    fields = {item.name: getattr(site, item.name) for item in dataclass_fields(site)}
    fields |= {
        "job": {**site.job, "aws": {"queue": QUEUE}},
        "calls": {**site.calls, **calls},
        "looks_before": 1,
        "stopping": (("batch", "TerminateServiceJob", 1),),
        "hints": {**site.hints, "stop": "batch:TerminateServiceJob"},
    }
    return QueueSite(**fields)


def _azure_site(cloud: AzureCloud) -> Site:
    return AzureSite(
        provider="azure",
        service="Azure ML",
        cloud=cloud,
        job=JOBS["azure"],
        calls={
            "prepare": ("arm", "PutEnvironment"),
            "create": ("arm", "PutJob"),
            "look": ("arm", "GetJob"),
            "observe": ("history", "GetRunDetails"),
            "list": ("arm", "ListJobs"),
            "log": ("blob", "GetBlob"),
            "tell": ("blob", "PutBlob"),
            "stop": ("arm", "CancelJob"),
        },
        looks_before=1,
        observing=(
            ("history", "GetDiscovery"),  # asks for an address and needs no credentials
            ("history", "GetRunDetails"),
            ("blob", "HeadBlob"),
            ("blob", "GetBlob"),
        ),
        stopping=(
            ("history", "GetRunDetails", 1),
            ("arm", "GetDatastore", 1),
            ("arm", "ListSecrets", 1),
            ("blob", "PutBlob", 1),
            ("blob", "HeadBlob", 1),
            ("arm", "CancelJob", 1),
        ),
        hints={
            "expired": "az login",
            "denied": "AzureML Data Scientist",
            "stop": "jobs/cancel/action: AzureML Data Scientist",
        },
    )


@contextmanager
def open_site(provider: str, phase_seconds: float = 3600) -> Iterator[Site]:
    """Open an imitated cloud; this process is its client, and retries at once."""
    with without(*OWN_VARIABLES.get(provider, ("AWS_",))), pytest.MonkeyPatch.context() as patch:
        for pause in (
            "botocore.retries.standard.ExponentialBackoff.delay_amount",
            "azure.core.pipeline.policies.RetryPolicy.get_backoff_time",
            "azure.storage.blob._shared.policies.ExponentialRetry.get_backoff_time",
        ):
            patch.setattr(pause, lambda *_: 0.001)
        patch.setattr("cloudtrain.providers.shared.idempotent_create.BACKOFF_SECONDS", 0.001)
        patch.setattr("botocore.loaders.create_loader", create_loader)

        if provider in ("aws", "queue"):
            with Cloud(phase_seconds=phase_seconds) as aws_cloud:
                site = _aws_site(aws_cloud) if provider == "aws" else _queue_site(aws_cloud)
                site.reconnect()
                yield site
                site.reconnect()
        else:
            forget()
            with AzureCloud(phase_seconds=phase_seconds) as azure_cloud, cheap_clients():
                site = _azure_site(azure_cloud)
                yield site
                forget()


def new_source(folder: Path) -> None:
    """Write a program that no cloud has stored yet."""
    (folder / "train.py").write_text(f"print('never run', {time.time_ns()})\n")
