"""The imitation on the wire: what SageMaker refuses, how jobs are looked up, and every fault as
boto3 meets it.
"""

from __future__ import annotations

import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from typing import Any

import boto3
import pytest
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError, ConnectionClosedError

from tests.fakes.aws.cloud import Cloud
from tests.fakes.aws.samples import channel, ended, request
from tests.fakes.faults import FaultKind
from tests.support.waiting import eventually

Body = dict[str, Any]


def changed(*path: str | int, to: Any) -> Callable[[Body], None]:
    def change(body: Body) -> None:
        at: Any = body
        for key in path[:-1]:
            at = at[key]
        if to is None:
            del at[path[-1]]
        else:
            at[path[-1]] = to

    return change


def merged(**fields: Any) -> Callable[[Body], None]:
    return lambda body: body.update(fields)


PREFERENCES = {"InstancePreferences": [{"InstanceType": "ml.g5.xlarge", "InstanceCount": 1}]}
REFUSED: dict[str, tuple[Callable[[Body], None], str]] = {
    "name": (
        changed("TrainingJobName", to="bad_name"),
        r"1 validation error detected: Value at 'TrainingJobName'",
    ),
    "two at once": (
        merged(TrainingJobName="x" * 64, Environment={"1-bad": "x"}),
        r"[23] validation errors detected: .*TrainingJobName.*Environment",
    ),
    "instance type": (
        changed("ResourceConfig", "InstanceType", to="ml.p99.48xlarge"),
        "known values",
    ),
    "spot without wait": (merged(EnableManagedSpotTraining=True), "Invalid MaxWaitTimeInSeconds"),
    "spot with a short wait": (
        merged(
            EnableManagedSpotTraining=True,
            StoppingCondition={"MaxRuntimeInSeconds": 60, "MaxWaitTimeInSeconds": 59},
        ),
        "Invalid MaxWaitTimeInSeconds",
    ),
    "spot kept warm": (
        merged(
            EnableManagedSpotTraining=True,
            StoppingCondition={"MaxRuntimeInSeconds": 60, "MaxWaitTimeInSeconds": 60},
            ResourceConfig={
                "InstanceType": "ml.g5.xlarge",
                "InstanceCount": 1,
                "KeepAlivePeriodInSeconds": 60,
            },
        ),
        "KeepAlivePeriodInSeconds",
    ),
    "preferences and a type": (
        merged(ResourceConfig=PREFERENCES | {"InstanceType": "ml.g5.xlarge"}),
        "together with InstanceType",
    ),
    "preferences and groups": (
        merged(
            ResourceConfig=PREFERENCES
            | {
                "InstanceGroups": [
                    {"InstanceType": "ml.g5.xlarge", "InstanceCount": 1, "InstanceGroupName": "a"}
                ]
            }
        ),
        "together with InstanceGroups",
    ),
    "preferences and spot": (
        merged(
            EnableManagedSpotTraining=True,
            ResourceConfig=PREFERENCES,
            StoppingCondition={"MaxRuntimeInSeconds": 60, "MaxWaitTimeInSeconds": 60},
        ),
        "together with EnableManagedSpotTraining",
    ),
    "some preferences counted": (
        merged(
            ResourceConfig={
                "InstancePreferences": [
                    *PREFERENCES["InstancePreferences"],
                    {"InstanceType": "ml.g6.xlarge"},
                ]
            }
        ),
        "for all InstancePreferences or for none",
    ),
    "CPU machines waited for": (
        merged(
            ResourceConfig={"InstanceType": "ml.m5.xlarge", "InstanceCount": 1},
            StoppingCondition={"MaxRuntimeInSeconds": 60, "MaxPendingTimeInSeconds": 3600},
        ),
        "MaxPendingTimeInSeconds is not supported",
    ),
    "no resources": (changed("ResourceConfig", to=None), "ResourceConfig is required"),
    "no algorithm": (
        changed("AlgorithmSpecification", to=None),
        "AlgorithmSpecification is required",
    ),
    "no machine": (changed("ResourceConfig", "InstanceCount", to=0), "at least 1"),
    "no type": (changed("ResourceConfig", to={"InstanceCount": 1}), "exactly one of InstanceType"),
    "neither image nor algorithm": (
        changed("AlgorithmSpecification", "TrainingImage", to=None),
        "exactly one of",
    ),
    "both image and algorithm": (
        changed("AlgorithmSpecification", "AlgorithmName", to="mine"),
        "exactly one of",
    ),
    "image elsewhere": (
        changed(
            "AlgorithmSpecification",
            "TrainingImage",
            to="123456789012.dkr.ecr.eu-west-1.amazonaws.com/a:1",
        ),
        "Cannot find the requested image",
    ),
    "image of the docker hub": (
        changed("AlgorithmSpecification", "TrainingImage", to="pytorch/pytorch:latest"),
        "Cannot find the requested image",
    ),
    "input bucket": (
        merged(InputDataConfig=[channel("a", "s3://no-such/a/")]),
        "No S3 objects found",
    ),
    "output bucket": (
        merged(OutputDataConfig={"S3OutputPath": "s3://no-such/out"}),
        "bucket of s3://no-such/out",
    ),
    "checkpoint bucket": (
        merged(CheckpointConfig={"S3Uri": "s3://no-such/c/"}),
        "given in CheckpointConfig",
    ),
    "file streamed": (
        merged(
            InputDataConfig=[
                channel("a", "s3://loopback-bucket/train/part/a.txt", InputMode="FastFile")
            ]
        ),
        "must be a folder",
    ),
    "channel twice": (
        merged(InputDataConfig=[channel("a", "s3://loopback-bucket/train/")] * 2),
        "must be unique",
    ),
    "role": (
        merged(RoleArn="arn:aws:iam::123456789012:role/untrusted"),
        (
            "Could not assume role .*untrusted. Please ensure that the role exists and allows"
            " principal"
        ),
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_sagemaker_refuses(account: Cloud, name: str) -> None:
    change, message = REFUSED[name]
    body = request(account, "refused", do="talk")
    change(body)
    with pytest.raises(ClientError, match=message) as refused:
        account.client("sagemaker").create_training_job(**body)
    assert refused.value.response["Error"]["Code"] == "ValidationException"
    assert refused.value.response["ResponseMetadata"]["HTTPStatusCode"] == 400
    assert "refused" not in account.service.jobs


def test_requests_are_refused_by_what_the_account_has(account: Cloud) -> None:
    account.account.quotas["ml.p4d.24xlarge"] = 0
    sagemaker = account.client("sagemaker")
    body = request(account, "quota", do="talk")
    body["ResourceConfig"] = {"InstanceType": "ml.p4d.24xlarge", "InstanceCount": 2}
    wording = (
        "'ml.p4d.24xlarge for training job usage' is 0 Instances, with current utilization of 0"
        " Instances and a "
    )
    with pytest.raises(
        sagemaker.exceptions.ResourceLimitExceeded, match=f"{wording}request delta of 2 Instances"
    ):
        sagemaker.create_training_job(**body)

    account.account.requires_objects = True
    body = request(account, "empty") | {
        "InputDataConfig": [channel("a", f"s3://{account.bucket}/nothing/")]
    }
    with pytest.raises(ClientError, match="No S3 objects found under S3 URL"):
        sagemaker.create_training_job(**body)

    sagemaker.create_training_job(**request(account, "twice", do="talk"))
    with pytest.raises(
        sagemaker.exceptions.ResourceInUse, match="a training job with this name already exists"
    ):
        sagemaker.create_training_job(**request(account, "twice", do="talk"))
    ended(account, "twice")


def test_what_is_not_there_is_not_found(account: Cloud) -> None:
    sagemaker = account.client("sagemaker")
    for call in (sagemaker.describe_training_job, sagemaker.stop_training_job):
        with pytest.raises(
            ClientError, match=r"\(ValidationException\).*: Requested resource not found\."
        ):
            call(TrainingJobName="never-was")
    with pytest.raises(ClientError, match="UnknownOperationException"):
        sagemaker.list_models()


def test_jobs_are_found_by_name_status_and_tag_page_by_page(account: Cloud) -> None:
    sagemaker = account.client("sagemaker")
    account.account.capacity.add("ml.p5.48xlarge")
    for number in range(12):
        body = request(account, f"found-{number}")
        body["ResourceConfig"]["InstanceType"] = "ml.p5.48xlarge"
        body["Tags"] = [{"Key": "find", "Value": str(number % 2)}]
        sagemaker.create_training_job(**body)
    for number in range(12):
        ended(account, f"found-{number}")
    pages = list(
        sagemaker.get_paginator("list_training_jobs").paginate(NameContains="FOUND-", MaxResults=5)
    )
    names = [
        summary["TrainingJobName"] for page in pages for summary in page["TrainingJobSummaries"]
    ]
    assert names == [f"found-{number}" for number in range(12)]
    assert [len(page["TrainingJobSummaries"]) for page in pages] == [5, 5, 2]
    none = sagemaker.list_training_jobs(NameContains="found-", StatusEquals="InProgress")
    assert none["TrainingJobSummaries"] == []

    def search(*filters: dict[str, str]) -> list[dict[str, Any]]:
        question = {
            "Resource": "TrainingJob",
            "SearchExpression": {"Filters": list(filters)},
            "MaxResults": 4,
        }
        return [
            result["TrainingJob"]
            for page in sagemaker.get_paginator("search").paginate(**question)
            for result in page["Results"]
        ]

    tagged = {"Name": "Tags.find", "Operator": "Exists"}
    assert len(search(tagged)) == 12
    assert len(search({"Name": "Tags.find", "Operator": "Equals", "Value": "1"})) == 6
    assert search(tagged, {"Name": "Tags.find", "Operator": "NotExists"}) == []
    (one,) = search(tagged, {"Name": "TrainingJobName", "Operator": "Equals", "Value": "found-3"})
    assert one["Tags"] == [{"Key": "find", "Value": "1"}]

    arn = one["TrainingJobArn"]
    sagemaker.add_tags(ResourceArn=arn, Tags=[{"Key": "more", "Value": "x"}])
    tags = sagemaker.list_tags(ResourceArn=arn)["Tags"]
    assert tags == [{"Key": "find", "Value": "1"}, {"Key": "more", "Value": "x"}]


ERRORS: dict[tuple[FaultKind, str], tuple[str, int]] = {
    ("throttle", "sagemaker"): ("ThrottlingException", 400),
    ("error", "sagemaker"): ("InternalFailure", 500),
    ("expired", "sagemaker"): ("ExpiredTokenException", 400),
    ("denied", "sagemaker"): ("AccessDeniedException", 400),
    ("throttle", "s3"): ("SlowDown", 503),
    ("error", "s3"): ("InternalError", 500),
    ("expired", "s3"): ("ExpiredToken", 400),
    ("denied", "s3"): ("AccessDenied", 403),
}


@pytest.mark.parametrize(("kind", "service"), ERRORS)
def test_errors_have_the_format_of_each_protocol(
    account: Cloud, kind: FaultKind, service: str
) -> None:
    account.endpoint.fault(kind, service, nth=2)

    def call() -> None:
        if service == "s3":
            account.client("s3").list_objects_v2(Bucket=account.bucket)
        else:
            account.client("sagemaker").list_training_jobs()

    call()
    with pytest.raises(ClientError) as failed:
        call()
    answer = failed.value.response
    assert (answer["Error"]["Code"], answer["ResponseMetadata"]["HTTPStatusCode"]) == ERRORS[
        kind, service
    ]
    call()


def put(cloud: Cloud, key: str, failed: list[BaseException] | None = None) -> None:
    try:
        cloud.client("s3").put_object(Bucket=cloud.bucket, Key=key, Body=b"x")
    except BotoCoreError as error:
        (failed if failed is not None else []).append(error)


@pytest.mark.parametrize(("kind", "executed"), [("lost", True), ("refused_lost", False)])
def test_a_response_is_lost_before_or_after_the_call_took_effect(
    account: Cloud, kind: FaultKind, executed: bool
) -> None:
    failed: list[BaseException] = []
    account.endpoint.fault_on_call(1, kind)
    for key in (f"{kind}/0", f"{kind}/1", f"{kind}/2"):
        put(account, key, failed)
    assert [type(error) for error in failed] == [ConnectionClosedError]
    assert (f"{kind}/1" in account.objects(f"{kind}/")) is executed
    assert account.endpoint.calls == [("s3", "PutObject")] * 3


@pytest.mark.parametrize(("kind", "executed"), [("hang", True), ("hang_before", False)])
def test_a_hanging_call_waits_until_it_is_released(
    account: Cloud, kind: FaultKind, executed: bool
) -> None:
    account.endpoint.fault(kind, "s3", "PutObject")
    thread = threading.Thread(target=put, args=(account, f"{kind}/a"))
    thread.start()
    account.endpoint.wait_until_hanging()
    assert bool(account.objects(f"{kind}/")) is executed
    account.endpoint.release()
    thread.join(10)
    assert not thread.is_alive()
    assert account.objects(f"{kind}/") == {f"{kind}/a": b"x"}


def test_a_call_whose_client_is_gone_is_dropped(account: Cloud) -> None:
    account.endpoint.fault("hang_before", "s3", "PutObject", times=2)
    config = Config(retries={"total_max_attempts": 2}, read_timeout=0.2)
    impatient = boto3.client("s3", config=config)
    with pytest.raises(BotoCoreError):
        impatient.put_object(Bucket=account.bucket, Key="gone", Body=b"x")
    impatient.close()
    account.endpoint.release()  # too late: whoever asked has gone
    eventually(lambda: account.endpoint.hanging == 0)
    assert account.objects("gone") == {}
    assert account.endpoint.calls == [("s3", "PutObject")] * 2


def test_a_slow_response_arrives(account: Cloud) -> None:
    account.endpoint.fault("slow", "s3", seconds=0.2)
    began = time.monotonic()
    put(account, "slow")
    assert time.monotonic() - began > 0.2


def test_calls_are_known_by_their_operations(account: Cloud) -> None:
    s3 = account.client("s3")
    big = account.account.folder / "big"
    big.write_bytes(b"x" * (9 * 2**20))
    s3.upload_file(str(big), account.bucket, "big/file")
    s3.head_object(Bucket=account.bucket, Key="big/file")
    s3.list_objects_v2(Bucket=account.bucket, Prefix="big/")
    s3.delete_object(Bucket=account.bucket, Key="big/file")
    account.client("sts").get_caller_identity()
    account.client("logs").describe_log_groups()
    names = ["CreateMultipartUpload", "UploadPart", "UploadPart", "CompleteMultipartUpload"]
    expected = [("s3", name) for name in (*names, "HeadObject", "ListObjectsV2", "DeleteObject")]
    assert account.endpoint.calls == [
        *expected,
        ("sts", "GetCallerIdentity"),
        ("logs", "DescribeLogGroups"),
    ]


def test_a_name_is_taken_once(account: Cloud) -> None:
    s3 = account.client("s3")
    s3.put_object(Bucket=account.bucket, Key="once", Body=b"first", IfNoneMatch="*")
    with pytest.raises(ClientError, match="PreconditionFailed"):
        s3.put_object(Bucket=account.bucket, Key="once", Body=b"second", IfNoneMatch="*")
    assert account.objects("once") == {"once": b"first"}


def test_an_unsigned_request_is_rejected(account: Cloud) -> None:
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(f"{account.endpoint.url}/{account.bucket}?list-type=2")
    refused.value.close()
    assert refused.value.code == 403
    elsewhere = boto3.client(
        "sagemaker", region_name="eu-west-1", config=Config(retries={"total_max_attempts": 1})
    )
    with pytest.raises(ClientError, match="Credential should be scoped to a valid region"):
        elsewhere.list_training_jobs()
    elsewhere.close()
