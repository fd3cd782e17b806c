"""The imitation of SageMaker answers as the service does, and grants as infra/aws does."""

from __future__ import annotations

import urllib.error
import urllib.request
from datetime import UTC
from email.utils import parsedate_to_datetime
from typing import Any

import pytest
from botocore.exceptions import ClientError, HTTPClientError

from tests.fakes.aws.cloud import BUCKET, Cloud, channel, ended, request, wait_for_log
from tests.providers.aws.operations import KEY
from tests.support.aws_template import JOB, job_policy

# The imitation of SageMaker answers in the form of the service, and refuses what that refuses.

SPOT = {"EnableManagedSpotTraining": True}
CPU = {"InstanceType": "ml.m5.xlarge", "InstanceCount": 1}
PREFERENCES = [{"InstanceType": "ml.g5.xlarge", "InstanceCount": 1}]
TWICE = {"InstancePreferences": PREFERENCES * 2}
RESERVED = {
    "InstancePreferences": PREFERENCES,
    "TrainingPlanArn": "arn:aws:sagemaker:us-east-1:123456789012:training-plan/mine",
}
STREAMED = channel("a", "s3://loopback-bucket/a.txt", InputMode="FastFile")
ELSEWHERE = {
    "TrainingImage": "123456789012.dkr.ecr.eu-west-1.amazonaws.com/a:1",
    "TrainingInputMode": "File",
}

REFUSED: list[tuple[str, dict[str, Any]]] = [
    (
        "1 validation error detected: Value 'bad_name' at 'trainingJobName'",
        {"TrainingJobName": "bad_name"},
    ),
    ("known values", {"ResourceConfig": {**CPU, "InstanceType": "ml.p99.48xlarge"}}),
    ("Not part of", {"DebugHookConfig": {"S3OutputPath": "s3://bucket/debug"}}),
    ("Invalid MaxWaitTimeInSeconds", SPOT),
    (
        "together with EnableManagedSpotTraining",
        {**SPOT, "ResourceConfig": {"InstancePreferences": PREFERENCES}},
    ),
    ("can appear only once", {"ResourceConfig": TWICE}),
    ("together with InstancePreferences", {"ResourceConfig": RESERVED}),
    (
        "MaxPendingTimeInSeconds is not supported",
        {"ResourceConfig": CPU, "StoppingCondition": {"MaxPendingTimeInSeconds": 7200}},
    ),
    ("Invalid training image", {"AlgorithmSpecification": ELSEWHERE}),
    ("No S3 objects found", {"InputDataConfig": [channel("a", "s3://no-such/a/")]}),
    ("must be a folder", {"InputDataConfig": [STREAMED]}),
    ("Could not assume role", {"RoleArn": "arn:aws:iam::123456789012:role/untrusted"}),
]


def test_job_is_described_with_its_phases_and_its_bill(account: Cloud) -> None:
    account.client("sagemaker").create_training_job(**request(account, "described"))
    described = ended(account, "described")
    phases = [transition["Status"] for transition in described["SecondaryStatusTransitions"]]
    assert phases[-3:] == ["Training", "Uploading", "Completed"]
    assert described["BillableTimeInSeconds"] == described["TrainingTimeInSeconds"] >= 1


@pytest.mark.parametrize(("message", "changes"), REFUSED)
def test_request_that_sagemaker_refuses_is_refused(
    account: Cloud, message: str, changes: dict[str, Any]
) -> None:
    body = {**request(account, "refused"), **changes}
    with pytest.raises(ClientError, match=message) as refused:
        account.client("sagemaker").create_training_job(**body)
    assert refused.value.response["Error"]["Code"] == "ValidationException"
    assert "refused" not in account.service.jobs


def test_unknown_operations_and_jobs_are_refused(account: Cloud) -> None:
    sagemaker = account.client("sagemaker")
    with pytest.raises(ClientError, match="Requested resource not found"):
        sagemaker.describe_training_job(TrainingJobName="never-was")
    with pytest.raises(ClientError, match="UnknownOperationException"):
        sagemaker.list_models()


@pytest.mark.parametrize(
    ("tag", "contradiction"),
    [
        ({"Key": "a"}, 'Missing required parameter in Tags[0]: "Value"'),
        ({"Key": "a", "Value": 1}, "Invalid type for parameter Tags[0].Value"),
        ({"Key": "a", "Value": "b", "C": ""}, 'Unknown parameter in Tags[0]: "C"'),
        ({"Key": "a", "Value": "b" * 257}, "is 257 characters long, at most 256"),
    ],
)
def test_answer_that_contradicts_the_service_model_is_a_mistake(
    account: Cloud, monkeypatch: pytest.MonkeyPatch, tag: dict[str, Any], contradiction: str
) -> None:
    monkeypatch.setitem(account.service.operations, "ListTags", lambda _: {"Tags": [tag]})
    with pytest.raises(HTTPClientError):
        account.client("sagemaker").list_tags(ResourceArn=account.account.arn("a"))
    assert contradiction in account.account.unexpected_errors.pop()


def test_an_answer_of_moto_arrives_with_one_date(account: Cloud) -> None:
    answer = account.client("s3").head_bucket(Bucket=account.bucket)
    assert parsedate_to_datetime(answer["ResponseMetadata"]["HTTPHeaders"]["date"]).tzinfo == UTC


def test_unsigned_request_is_rejected(account: Cloud) -> None:
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(f"{account.endpoint.url}/{account.bucket}?list-type=2")
    refused.value.close()
    assert refused.value.code == 403


# Jobs under the policy of infra/aws: it grants exactly the rights that a job needs.

POLICY = job_policy(
    BucketName=BUCKET, RepositoryName="train", KmsKey=KEY, Network="existing", RemoteDebug="yes"
)
CHANNELS = {action for action, only_with in JOB.items() if only_with == "remote_debug"}
UNSEEN = {
    *("secretsmanager:GetSecretValue", "ssm:GetParameter"),
    *("cloudwatch:PutMetricData", "s3:AbortMultipartUpload", *CHANNELS),
}
"""Further actions for a job: secrets, graphs, a shell, and giving up an upload."""


def body(cloud: Cloud) -> dict[str, Any]:
    """Return a job in a network, with a key and checkpoints, and with results in the usual place."""
    place = f"s3://{cloud.bucket}/cloudtrain/runs/"
    return {
        **request(cloud, "job"),
        "OutputDataConfig": {"S3OutputPath": place, "KmsKeyId": KEY},
        "CheckpointConfig": {"S3Uri": f"{place}job/checkpoints/"},
        "VpcConfig": {
            "Subnets": ["subnet-0123456789abcdef0"],
            "SecurityGroupIds": ["sg-0123456789abcdef0"],
        },
        "ResourceConfig": {
            "InstanceType": "ml.m5.xlarge",
            "InstanceCount": 1,
            "VolumeSizeInGB": 1,
            "VolumeKmsKeyId": KEY,
        },
    }


def test_policy_is_enough_for_a_job_and_grants_nothing_else(account: Cloud) -> None:
    account.account.attempted.clear()
    account.account.job_policy = POLICY
    account.client("sagemaker").create_training_job(**body(account))
    described = ended(account, "job")
    assert (described["TrainingJobStatus"], described.get("FailureReason")) == ("Completed", None)
    wait_for_log(account, "job")
    assert account.account.attempted | UNSEEN == set(JOB)
