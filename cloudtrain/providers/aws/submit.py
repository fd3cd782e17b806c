"""Submit a request so that it creates exactly one job or none.

Upload, record, create, and look when in doubt.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from cloudtrain.errors import CloudError, Outcome, RunExists
from cloudtrain.planning.sagemaker import training_request
from cloudtrain.providers.aws import queue
from cloudtrain.providers.aws.config import AwsConfig, client_of_run, config_of
from cloudtrain.providers.aws.request import JOB, JOB_FILE, SOURCE, channel_uri, uri_parts
from cloudtrain.providers.shared import idempotent_create
from cloudtrain.providers.shared.idempotent_create import Attempt, own_tags, same_submission
from cloudtrain.providers.shared.paths import ARCHIVE
from cloudtrain.providers.shared.uploads import upload_inputs
from cloudtrain.runs.files import as_text

if TYPE_CHECKING:
    from cloudtrain.planning.launch import JobDocument, Request
    from cloudtrain.planning.plan import Plan
    from cloudtrain.providers.aws.client import AwsClient
    from cloudtrain.providers.progress import Progress
    from cloudtrain.providers.shared.downloads import StoredFile
    from cloudtrain.runs.folder import RunFolder
    from cloudtrain.runs.logs import Record
    from cloudtrain.source.inputs import SentFile
    from cloudtrain_wire.events import Event

UNREADABLE_TAGS_CODES = (
    "AccessDenied",
    "AccessDeniedException",
    "UnauthorizedOperation",
    "ValidationException",
    "NotFound",
)
"""Codes of ListTags for a missing permission, and for an ARN that it does not know yet."""


QUEUE = "jobQueue"
"""Member that a request to a queue has, and none to SageMaker."""


class Bucket(NamedTuple):
    """The bucket of a job's account, for uploads; a bucket of another account is refused."""

    cloud: AwsClient
    config: AwsConfig

    @property
    def _owner(self) -> dict[str, str]:
        return {"ExpectedBucketOwner": self.config.role.split(":")[4]}

    def blobs(self, prefix: str) -> Iterable[StoredFile]:
        """Yield all objects with a prefix."""
        return self.cloud.objects(self.config.bucket, prefix, **self._owner)

    def upload(self, name: str, file: SentFile) -> None:
        """Store a file, completely or not at all."""
        self.cloud.send(self.config.bucket, name, file, self.config.kms_key, **self._owner)

    def put(self, name: str, content: bytes) -> None:
        """Store an object."""
        self.cloud.put(self.config.bucket, name, content, self.config.kms_key, **self._owner)

    def delete(self, folder: str, last: str) -> int:
        """Delete all objects of a folder, and one last. Return how many stay as old versions."""
        versions = 0
        names = {file.name for file in self.blobs(folder)} - {last}
        for name in (*names, last):
            place = {"Bucket": self.config.bucket, "Key": name, **self._owner}
            versions += bool(self.cloud.call("s3", "delete_object", **place).get("DeleteMarker"))

        return versions


class Kind(NamedTuple):
    """Words of SageMaker's API for a training job, or for a tuning job."""

    label: str
    operation: str
    name: str
    """Member with the name; `arn` and `status`: members with these."""
    arn: str
    status: str
    page: str
    """Page of the console."""
    needed: Mapping[str, type]
    """Members of a stored request for later steps, with their types."""
    compared: tuple[str, ...]
    """Members that no two submissions have in common.

    The URIs of the channels contain the digests of the source and the job document and the run id.
    """


TRAINING = Kind(
    label="training job",
    operation="training_job",
    name="TrainingJobName",
    arn="TrainingJobArn",
    status="TrainingJobStatus",
    page="jobs",
    needed={
        "TrainingJobName": str,
        "RoleArn": str,
        "InputDataConfig": list,
        "OutputDataConfig.S3OutputPath": str,
        "Tags": list,
    },
    compared=("InputDataConfig", "OutputDataConfig", "RoleArn"),
)
TUNING = Kind(
    label="tuning job",
    operation="hyper_parameter_tuning_job",
    name="HyperParameterTuningJobName",
    arn="HyperParameterTuningJobArn",
    status="HyperParameterTuningJobStatus",
    page="hyper-tuning-jobs",
    needed={
        "HyperParameterTuningJobName": str,
        "HyperParameterTuningJobConfig.ParameterRanges": dict,
        "TrainingJobDefinition.RoleArn": str,
        "TrainingJobDefinition.OutputDataConfig.S3OutputPath": str,
        "Tags": list,
    },
    compared=("TrainingJobDefinition",),
)


_CONSOLES = {
    "aws": "console.aws.amazon.com",
    "aws-cn": "console.amazonaws.cn",
    "aws-us-gov": "console.amazonaws-us-gov.com",
    "aws-eusc": "console.amazonaws-eusc.eu",
}
"""Partition in an ARN -> domain of its console, below a region."""


def start(
    plan: Plan,
    request: Request,
    run: RunFolder,
    archive: Path,
    progress: Progress | None,
    record: Record,
    kind: Kind = TRAINING,
) -> dict[str, Any]:
    """Upload inputs, source and job document, create the job, return its reference.

    Three calls if the archive is unchanged or small. Raise CloudError with `Outcome.UNKNOWN`
    if it is unknown whether the job exists; `reconcile` finds out later.
    """
    cloud = client_of_run(run)
    body = request.document
    try:
        upload_inputs(plan, Bucket(cloud, plan.target.config_as(AwsConfig)), progress)
    except CloudError as error:
        error.outcome = Outcome.NOT_STARTED
        raise

    upload(cloud, _definition(body), request.job, archive, progress)
    if QUEUE in body:
        return queue.submit(cloud, body, record)

    name = body[kind.name]

    def send(attempt: Attempt) -> dict[str, Any]:
        answer = cloud.create(attempt, "sagemaker", f"create_{kind.operation}", body)
        return job_reference(cloud.region, name, answer[kind.arn], kind)

    return idempotent_create.create(
        name,
        send,
        lambda: _find(cloud, body, kind),
        record=record,
        attempts=cloud.attempts,
        name_taken_codes=("ResourceInUse",),
    )


def request_of(run: RunFolder, kind: Kind = TRAINING) -> dict[str, Any]:
    """Return the job in the request of a run or a sweep. StorageError if it lacks needed members."""
    return dict(training_request(document_of(run, kind)))


def document_of(run: RunFolder, kind: Kind = TRAINING) -> dict[str, Any]:
    """Return the sent request of a run or a sweep, for a queue or for SageMaker."""
    needed = kind.needed
    if kind is TRAINING and config_of(run).queue:
        needed = queue.NEEDED

    from cloudtrain.runs.record import RunRecord

    return RunRecord(run).request(needed)


def _definition(body: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the training job in a request."""
    job = training_request(body)
    definition: Mapping[str, Any] = job.get("TrainingJobDefinition", job)
    return definition


def upload(
    cloud: AwsClient,
    body: Mapping[str, Any],
    job: JobDocument,
    archive: Path,
    progress: Progress | None,
) -> None:
    """Store the job document and the source archive for a request's channels.

    Raise CloudError with `Outcome.NOT_STARTED` if that fails.
    """
    key = body["OutputDataConfig"].get("KmsKeyId")
    try:
        bucket, folder = uri_parts(channel_uri(body, SOURCE))
        cloud.store(bucket, folder + ARCHIVE, archive, key, progress)
        bucket, folder = uri_parts(channel_uri(body, JOB))
        cloud.put(bucket, folder + JOB_FILE, as_text(job.to_json()).encode(), key)
    except CloudError as error:
        # the job was not requested, whether or not the object was stored
        error.outcome = Outcome.NOT_STARTED
        raise


def reconcile(
    cloud: AwsClient,
    run: RunFolder,
    body: Mapping[str, Any],
    time_now: float,
    kind: Kind = TRAINING,
) -> list[Event]:
    """Return events about the result of an interrupted submission; empty while in progress."""

    def find() -> dict[str, Any] | None:
        reference = _find(cloud, body, kind)
        if reference is None:
            require_same_account(cloud, _definition(body)["RoleArn"], run.run_id)
        return reference

    return idempotent_create.reconcile(run, time_now, find, "SageMaker")


def describe(cloud: AwsClient, name: str, kind: Kind = TRAINING) -> dict[str, Any] | None:
    """Return SageMaker's description of a job; None if it does not exist."""
    try:
        return cloud.call("sagemaker", f"describe_{kind.operation}", **{kind.name: name})
    except CloudError as error:
        if error.code == "NotFound":
            return None
        raise


def require_same_account(cloud: AwsClient, arn: str, name: str) -> None:
    """Raise CloudError unless the credentials belong to the account of the job with this ARN."""
    account = cloud.call("sts", "get_caller_identity")["Account"]
    job_account = arn.split(":")[4]
    if account != job_account:
        message = (
            f"these credentials belong to the account {account}, the run {name} to {job_account}"
        )
        raise CloudError(message, hint="look at AWS_PROFILE, then try again", code="OtherAccount")


def job_reference(region: str, name: str, arn: str, kind: Kind = TRAINING) -> dict[str, Any]:
    """Return the reference of a job: name, ARN, region and the URL of the console.

    `name`: as requested. In ARNs the service may write it in lower case. The URL is empty in a
    partition whose console address is unknown.
    """
    partition = arn.removeprefix("arn:").partition(":")[0]
    domain = _CONSOLES.get(partition)
    url = ""
    if domain:
        console = f"https://{region}.{domain}/sagemaker/home?region={region}"
        url = f"{console}#/{kind.page}/{name}"

    return {"name": name, "arn": arn, "region": region, "url": url}


def tags_of(cloud: AwsClient, arn: str) -> dict[str, str]:
    """Return our tags of a job, without their prefix."""
    tags: list[Mapping[str, str]] = []
    for page in cloud.pages("sagemaker", "list_tags", ResourceArn=arn):
        tags += page.get("Tags", [])

    return own_tag_values(tags)


def own_tag_values(tags: Iterable[Mapping[str, str]]) -> dict[str, str]:
    """Return our tags in a list of the API, without their prefix."""
    return own_tags({tag["Key"]: tag["Value"] for tag in tags})


def _find(cloud: AwsClient, body: Mapping[str, Any], kind: Kind) -> dict[str, Any] | None:
    """Return the job's reference if it is of this submission, or None.

    Raise RunExists if it is of another one. The tags decide. If they are not visible, for want of
    a permission or because the service does not show them yet, the requests are compared.
    """
    if QUEUE in body:
        return queue.find(cloud, body)

    name = body[kind.name]
    described = describe(cloud, name, kind)
    if described is None:
        return None

    arn = described[kind.arn]
    try:
        visible = tags_of(cloud, arn)
    except CloudError as error:
        if error.transient or error.code not in UNREADABLE_TAGS_CODES:
            raise
        visible = {}

    expected = own_tag_values(body["Tags"])
    if visible:
        is_own = same_submission(expected, visible)
    else:
        is_own = all(_contains(described.get(field), body[field]) for field in kind.compared)
    if is_own:
        return job_reference(cloud.region, name, arn, kind)

    message = f"a {kind.label} {name} exists already in {cloud.region}"
    raise RunExists(message, hint="choose another --run-id")


def _contains(actual: Any, requested: Any) -> bool:
    """Return True if a description has all requested values; SageMaker adds fields."""
    if isinstance(requested, Mapping):
        if not isinstance(actual, Mapping):
            return False
        return all(_contains(actual.get(key), item) for key, item in requested.items())

    if isinstance(requested, list):
        if not isinstance(actual, list) or len(requested) != len(actual):
            return False
        return all(map(_contains, actual, requested))

    return bool(requested == actual)
