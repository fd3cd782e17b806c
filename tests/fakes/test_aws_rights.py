"""Jobs under the policy of infra/aws: without one action a job fails where it needs it, and names
it.
"""

from __future__ import annotations

from typing import Any

import pytest
from botocore.exceptions import ClientError

from cloudtrain.providers.aws.permissions import JOB
from cloudtrain_launcher.stored_secrets import get_aws_secret
from tests.fakes.aws.cloud import BUCKET, Cloud
from tests.fakes.aws.policies import Statement, without
from tests.fakes.aws.samples import ended, lines, request, wait_for_output
from tests.providers.aws.operations import KEY
from tests.support.aws_template import job_policy

POLICY = job_policy(
    BucketName=BUCKET, RepositoryName="train", KmsKey=KEY, Network="existing", RemoteDebug="yes"
)
CHANNELS = {right.action for right in JOB if right.only_with == "remote_debug"}
AT_CREATE = {right.action for right in JOB if right.only_with} - CHANNELS
IMAGE = {right.action for right in JOB if right.action.startswith("ecr:")}
DOWNLOAD = {"s3:ListBucket", "s3:GetObject"}
SAVING = {"s3:PutObject", "s3:DeleteObject"}
LOGS = {right.action for right in JOB if right.action.startswith("logs:")}
SECRETS = {"secretsmanager": "secretsmanager:GetSecretValue", "ssm": "ssm:GetParameter"}
UNSEEN = {"cloudwatch:PutMetricData", "s3:AbortMultipartUpload", *CHANNELS}
"""SageMaker's further actions for a job: without them graphs, shell, and parts of an upload that a
rule of the bucket deletes are missing.
"""


def body(cloud: Cloud, name: str) -> dict[str, Any]:
    """Return a job in a network, with a key and checkpoints, and with results in the usual place."""
    made = request(cloud, name, do="talk")
    place = f"s3://{cloud.bucket}/cloudtrain/runs/"
    made["OutputDataConfig"] = {"S3OutputPath": place, "KmsKeyId": KEY}
    made["CheckpointConfig"] = {"S3Uri": f"{place}{name}/checkpoints/"}
    made["VpcConfig"] = {
        "Subnets": ["subnet-0123456789abcdef0"],
        "SecurityGroupIds": ["sg-0123456789abcdef0"],
    }
    made["ResourceConfig"] = {
        "InstanceType": "ml.m5.xlarge",
        "InstanceCount": 1,
        "VolumeSizeInGB": 1,
    }
    made["ResourceConfig"]["VolumeKmsKeyId"] = KEY
    return made


def run(cloud: Cloud, name: str, policy: list[Statement]) -> dict[str, Any]:
    """The description of such a job when it is over."""
    cloud.account.job_policy = policy
    cloud.client("sagemaker").create_training_job(**body(cloud, name))
    return ended(cloud, name)


def name_of(action: str) -> str:
    return "without-" + action.replace(":", "-")


def test_with_the_whole_policy_a_job_passes_and_needs_exactly_what_is_listed(
    account: Cloud,
) -> None:
    account.account.attempted.clear()
    described = run(account, "whole-policy", POLICY)
    assert (described["TrainingJobStatus"], described.get("FailureReason")) == ("Completed", None)
    wait_for_output(account, "whole-policy", "algo-1")
    assert account.account.attempted == AT_CREATE | IMAGE | DOWNLOAD | SAVING | LOGS
    assert account.account.attempted | set(SECRETS.values()) | UNSEEN == {
        right.action for right in JOB
    }


@pytest.mark.parametrize("action", sorted(AT_CREATE))
def test_without_network_or_key_a_job_is_refused_when_it_is_asked_for(
    account: Cloud, action: str
) -> None:
    with pytest.raises(ClientError, match=f"not authorized to perform: {action}"):
        run(account, name_of(action), without(action, POLICY))


@pytest.mark.parametrize("action", sorted(IMAGE | DOWNLOAD | SAVING))
def test_without_what_a_job_reads_or_writes_it_fails_and_names_the_action(
    account: Cloud, action: str
) -> None:
    described = run(account, name_of(action), without(action, POLICY))
    assert described["TrainingJobStatus"] == "Failed"
    assert f"not authorized to perform: {action}" in described["FailureReason"]


@pytest.mark.parametrize("action", sorted(LOGS))
def test_without_its_log_a_job_goes_on_unseen(account: Cloud, action: str) -> None:
    assert (
        run(account, name_of(action), without(action, POLICY))["TrainingJobStatus"] == "Completed"
    )
    assert lines(account, name_of(action)) == {}


@pytest.mark.parametrize("store", SECRETS)
def test_a_secret_of_the_stack_s_name_is_read_and_no_other(account: Cloud, store: str) -> None:
    account.client("secretsmanager", direct=True).create_secret(
        Name=f"cloudtrain/{store}", SecretString="value"
    )
    parameter = {"Name": f"/cloudtrain/{store}", "Value": "value", "Type": "SecureString"}
    account.client("ssm", direct=True).put_parameter(**parameter)
    name = f"/cloudtrain/{store}" if store == "ssm" else f"cloudtrain/{store}"
    account.account.caller_policy = POLICY
    assert (
        get_aws_secret(
            "the secret", store, name, account.environment() | {"AWS_REGION": account.region}
        )
        == "value"
    )
    for policy, expected in (
        (without(SECRETS[store], POLICY), name),
        (POLICY, name.replace("cloudtrain", "others")),
    ):
        account.account.caller_policy = policy
        with pytest.raises(
            RuntimeError, match=f"AccessDenied.*; the job's role needs {SECRETS[store]}"
        ):
            get_aws_secret("the secret", store, expected, {"AWS_REGION": account.region})
