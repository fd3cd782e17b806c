"""Jobs under the policy of infra/aws: it grants exactly the rights that a job needs."""

from __future__ import annotations

from typing import Any

import pytest
from botocore.exceptions import ClientError

from cloudtrain_launcher.stored_secrets import get_aws_secret
from tests.fakes.aws.cloud import BUCKET, Cloud
from tests.fakes.aws.policies import without
from tests.fakes.aws.samples import ended, request, wait_for_log
from tests.providers.aws.operations import KEY
from tests.support.aws_permissions import JOB
from tests.support.aws_template import job_policy

POLICY = job_policy(
    BucketName=BUCKET, RepositoryName="train", KmsKey=KEY, Network="existing", RemoteDebug="yes"
)
CHANNELS = {action for action, only_with in JOB.items() if only_with == "remote_debug"}
SECRETS = {"secretsmanager": "secretsmanager:GetSecretValue", "ssm": "ssm:GetParameter"}
UNSEEN = {"cloudwatch:PutMetricData", "s3:AbortMultipartUpload", *CHANNELS}
"""Further actions of SageMaker for a job: graphs, a shell, and giving up an upload."""


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
    assert account.account.attempted | set(SECRETS.values()) | UNSEEN == set(JOB)


def test_job_that_may_not_pull_its_image_is_refused_and_names_the_action(account: Cloud) -> None:
    account.account.job_policy = without("ecr:BatchGetImage", POLICY)
    with pytest.raises(ClientError, match="ecr:BatchGetImage"):
        account.client("sagemaker").create_training_job(
            **{**body(account), "TrainingJobName": "no"}
        )


@pytest.mark.parametrize("store", SECRETS)
def test_a_secret_of_the_stack_s_name_is_read_and_no_other(account: Cloud, store: str) -> None:
    account.client("secretsmanager", direct=True).create_secret(
        Name=f"cloudtrain/{store}", SecretString="value"
    )
    parameter = {"Name": f"/cloudtrain/{store}", "Value": "value", "Type": "SecureString"}
    account.client("ssm", direct=True).put_parameter(**parameter)
    name = f"/cloudtrain/{store}" if store == "ssm" else f"cloudtrain/{store}"
    environment = account.environment() | {"AWS_REGION": account.region}
    account.account.caller_policy = POLICY
    assert get_aws_secret("the secret", store, name, environment) == "value"
    other_name = name.replace("cloudtrain", "others")
    with pytest.raises(RuntimeError, match=f"the job's role needs {SECRETS[store]}"):
        get_aws_secret("the secret", store, other_name, environment)
