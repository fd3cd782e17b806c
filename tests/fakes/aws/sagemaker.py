"""A SageMaker control plane that refuses what AWS refuses, and runs what it takes."""

from __future__ import annotations

import base64
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Container, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import boto3
from botocore.config import Config

from cloudtrain.errors import Keys, dotted
from cloudtrain.providers.shared.shapes import violations
from tests.fakes.aws import running
from tests.fakes.aws.account import Account, LogGroup, Storage
from tests.fakes.aws.batch import Batch
from tests.fakes.aws.jobs import Job
from tests.fakes.aws.request_rules import refuse
from tests.fakes.aws.service_models import service_model
from tests.fakes.aws.tuning import TuningJob, missing
from tests.fakes.aws.wire import invalid
from tests.fakes.containers import JobThreads
from tests.fakes.messages import ServiceError

# Looking jobs up: Search, and the trials of a tuning job, page by page.

PAGE = 10
"""As many results has a page where the request does not say."""

Body = Mapping[str, Any]


def listed_trials(tuning: TuningJob, body: Body) -> dict[str, Any]:
    """ListTrainingJobsForHyperParameterTuningJob's answer."""
    if set(body) - {"HyperParameterTuningJobName", "SortBy", "MaxResults", "NextToken"}:
        raise invalid("Not part of this imitation.")
    key = {"Name": "TrainingJobName", "CreationTime": "CreationTime"}[body.get("SortBy", "Name")]
    page, token = _page(list(tuning.trials), body, key, "Ascending")
    return {"TrainingJobSummaries": [tuning.summary(job) for job in page], **token}


def searched(jobs: Sequence[Job], body: Body, members: Container[str]) -> dict[str, Any]:
    """Search's answer; `members`: what of a description a search result may hold."""
    if body["Resource"] != "TrainingJob":
        raise invalid("This imitation searches for a TrainingJob only.")
    expression = body["SearchExpression"]
    key = body["SortBy"]
    if set(expression) != {"Filters"} or key != "LastModifiedTime":
        raise invalid("Not part of this imitation.")
    filters = expression["Filters"]
    matches = [job for job in jobs if all(_matches(job, condition) for condition in filters)]
    page, token = _page(matches, body, key, body.get("SortOrder", "Descending"))
    results = []
    for job in page:
        described = {key: value for key, value in job.describe().items() if key in members}
        results.append({"TrainingJob": described | {"Tags": job.tag_list()}})
    return {
        "Results": results,
        "TotalHits": {"Value": len(matches), "Relation": "EqualTo"},
        **token,
    }


def _matches(job: Job, wish: Mapping[str, str]) -> bool:
    """Return whether a job meets a filter (API reference, Filter)."""
    match wish["Name"], wish.get("Operator"), wish.get("Value"):
        case "LastModifiedTime", "GreaterThanOrEqualTo", str(value):
            since = datetime.strptime(value, "%Y-%m-%dT%H:%M:%S").replace(tzinfo=UTC)
            return bool(job["LastModifiedTime"] >= since.timestamp())
        case "TrainingJobName", "Equals", str(value):
            return job.name == value
        case name, "Equals", str(value) if name.startswith("Tags."):
            return job.tags.get(name.removeprefix("Tags.")) == value
        case name, "Exists", None if name.startswith("Tags."):
            return name.removeprefix("Tags.") in job.tags
    raise invalid(f"Not part of this imitation: {wish}")


def _page(
    jobs: Sequence[Job], body: Body, key: str, order: str
) -> tuple[list[Job], dict[str, str]]:
    """Return this page's jobs, and the token of the next page: the name of its last job."""
    ordered = sorted(jobs, key=lambda job: (job[key], job.name), reverse=order == "Descending")
    start = 0
    if "NextToken" in body:
        try:
            last = base64.b64decode(body["NextToken"], validate=True).decode()
            start = [job.name for job in ordered].index(last) + 1
        except ValueError:
            raise invalid("Invalid NextToken.") from None
    end = start + body.get("MaxResults", PAGE)
    more = (
        {"NextToken": base64.b64encode(ordered[end - 1].name.encode()).decode()}
        if end < len(ordered)
        else {}
    )
    return ordered[start:end], more


# A SageMaker control plane that refuses what AWS refuses, and runs the container contract of what
# it takes.

Document = dict[str, Any]


class SageMaker:
    """The training jobs of one account in one region. S3 and CloudWatch are at `endpoint`."""

    def __init__(
        self,
        endpoint: str,
        *,
        region: str = "us-east-1",
        account: str = "123456789012",
        **settings: Any,
    ) -> None:
        """`settings`: further fields of `Account`, such as `grace_seconds`, `quotas` or `env`."""
        unexpected_errors: list[str] = []
        self._clients = [_client(name, endpoint, region) for name in ("s3", "logs")]
        storage = Storage(self._clients[0])
        logs = LogGroup(self._clients[1], unexpected_errors)
        folder = Path(tempfile.mkdtemp(prefix="loopback-"))
        self.account = Account(
            region=region,
            account=account,
            storage=storage,
            logs=logs,
            folder=folder,
            unexpected_errors=unexpected_errors,
            **settings,
        )
        self.account.tags = self._visible_tags
        self.jobs: dict[str, Job] = {}
        self.tuning_jobs: dict[str, TuningJob] = {}
        self._threads = JobThreads(self.account.closing)
        self._lock = threading.Lock()
        self.model = service_model("sagemaker")
        self.batch = Batch(region, account, self._launch)
        """Queues of AWS Batch."""
        self.operations: dict[str, Callable[[Document], Document]] = {
            "CreateTrainingJob": self._create,
            "DescribeTrainingJob": lambda body: self._job(body["TrainingJobName"]).describe(),
            "StopTrainingJob": self._stop,
            "UpdateTrainingJob": self._update,
            "DescribeTrainingPlan": self._training_plan,
            "Search": lambda body: searched(
                self._all(), body, self.model.shape_for("TrainingJob").members
            ),
            "ListTags": lambda body: {"Tags": self._tagged(body).tag_list()},
            "CreateHyperParameterTuningJob": self._create_tuning,
            "DescribeHyperParameterTuningJob": lambda body: self._tuning(body).describe(),
            "StopHyperParameterTuningJob": self._stop_tuning,
            "ListTrainingJobsForHyperParameterTuningJob": lambda body: listed_trials(
                self._tuning(body), body
            ),
        }

    def call(self, operation: str, body: Mapping[str, Any]) -> Document:
        """One call of the API; Refused is what it answers instead."""
        if operation not in self.operations:
            raise ServiceError(
                "UnknownOperationException", f"The requested operation {operation} is not known."
            )
        problems = violations(self.model.operation_model(operation).input_shape, dict(body))
        if problems:
            several = "errors" if len(problems) > 1 else "error"
            message = "; ".join(
                f"Value '{_value_at(body, problem.path)}' at '{_member(problem.path)}' failed to"
                f" satisfy constraint: {problem.message}"
                for problem in problems
            )
            raise invalid(f"{len(problems)} validation {several} detected: {message}")
        return self.operations[operation](dict(body))

    def interrupt(self, name: str) -> None:
        """Take a job's machines away as soon as it trains, as a spot market does."""
        self._job(name).interrupted.set()

    def close(self) -> None:
        """End all jobs by force, and leave nothing behind."""
        self._threads.close()
        self.account.logs.close()
        for client in self._clients:
            client.close()
        shutil.rmtree(self.account.folder, ignore_errors=True)

    def _visible_tags(self, arn: str) -> Mapping[str, str]:
        """Return the tags that IAM's policies see; empty for a job that is missing or too new."""
        kind, _, name = arn.rpartition(":")[2].partition("/")
        job = self.jobs.get(name) if kind == "training-job" else self.tuning_jobs.get(name)
        if kind == "service-job":
            return self.batch.jobs[arn].tags if arn in self.batch.jobs else {}
        if job is None or time.time() < job.created + self.account.tag_delay_seconds:
            return {}
        return job.tags

    def _create(self, body: Document) -> Document:
        return {"TrainingJobArn": self._launch(body)["TrainingJobArn"]}

    def _create_tuning(self, body: Document) -> Document:
        name = body["HyperParameterTuningJobName"]
        with self._lock:
            if name in self.tuning_jobs:
                raise ServiceError(
                    "ResourceInUse",
                    f"A hyperparameter tuning job of the name {name} already exists.",
                )
            made = self.tuning_jobs[name] = TuningJob(body, self.account, self._launch)
            self._threads.start(made, made.run)
        return {"HyperParameterTuningJobArn": made.arn}

    def _stop_tuning(self, body: Document) -> Document:
        self._tuning(body).stop()
        return {}

    def _tuning(self, body: Document) -> TuningJob:
        with self._lock:
            name = body["HyperParameterTuningJobName"]
            if name not in self.tuning_jobs:
                raise missing(name)
            return self.tuning_jobs[name]

    def _launch(self, body: Document) -> Job:
        """A training job, of a client or of a tuning job."""
        name = body["TrainingJobName"]
        with self._lock:
            if name in self.jobs:
                raise ServiceError(
                    "ResourceInUse",
                    "Training job names must be unique within an AWS account and region, and a"
                    f" training job with this name already exists ({self.account.arn(name)})",
                )
            refuse(body, self.account, self.jobs.values())
            job = self.jobs[name] = Job(body, self.account.arn(name))
            if self.account.has_warm_pools:
                job.keep_machines()
            self._threads.start(job, lambda: running.run(job, self.account))
        return job

    def _stop(self, body: Document) -> Document:
        self._job(body["TrainingJobName"]).stop()
        return {}

    def _update(self, body: Document) -> Document:
        if set(body) != {"TrainingJobName", "ResourceConfig"}:
            raise invalid("This imitation updates KeepAlivePeriodInSeconds only.")
        job = self._job(body["TrainingJobName"])
        job.keep_for(body["ResourceConfig"]["KeepAlivePeriodInSeconds"])
        return {"TrainingJobArn": job["TrainingJobArn"]}

    def _training_plan(self, body: Document) -> Document:
        name = body["TrainingPlanName"]
        if name not in self.account.training_plans:
            raise ServiceError("ResourceNotFound", f"Training plan {name} does not exist")
        arn = f"arn:aws:sagemaker:{self.account.region}:{self.account.account}:training-plan/{name}"
        known = {"TrainingPlanName": name, "TrainingPlanArn": arn, "Status": "Active"}
        return known | self.account.training_plans[name]

    def _tagged(self, body: Document) -> Job | TuningJob:
        kind, _, name = str(body["ResourceArn"]).rpartition("/")
        if kind.endswith(":hyper-parameter-tuning-job"):
            return self._tuning({"HyperParameterTuningJobName": name})
        return self._job(str(body["ResourceArn"]).removeprefix(self.account.arn("")))

    def _job(self, name: str) -> Job:
        with self._lock:
            if name not in self.jobs:
                raise invalid("Requested resource not found.")
            return self.jobs[name]

    def _all(self) -> list[Job]:
        with self._lock:
            return list(self.jobs.values())


def _client(service: str, endpoint: str, region: str) -> Any:
    session = boto3.session.Session(
        aws_access_key_id="sagemaker", aws_secret_access_key="sagemaker", region_name=region
    )
    return session.client(service, endpoint_url=endpoint, config=Config(max_pool_connections=30))


def _value_at(body: Any, path: Keys) -> Any:
    """Return the value of a request at a path; None if it is missing."""
    for key in path:
        try:
            body = body[key]
        except (KeyError, IndexError):
            return None
    return body


def _member(path: Keys) -> str:
    """Return a path as SageMaker writes it: `resourceConfig.instanceType`."""
    return dotted(tuple(k if isinstance(k, int) else k[:1].lower() + k[1:] for k in path))
