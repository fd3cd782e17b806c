"""The templates' rights, and doctor's questions about them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple, cast

import pytest

import cloudtrain
from cloudtrain.providers import get_provider
from cloudtrain.providers.aws.account_rights import (
    Account,
    Need,
    distrust,
    needs_of_job,
    needs_of_submit,
)
from cloudtrain.providers.aws.config import AwsConfig
from cloudtrain.settings import load_settings
from tests.fakes.aws.policies import Attempt, Statement, is_allowed
from tests.fakes.azure.rbac import Attempt as AzureAttempt
from tests.support.aws_permissions import JOB, SUBMITTER
from tests.support.aws_template import ACCOUNT, REGION, job_policy, resolved, submitter_policy
from tests.support.azure_template import PEOPLE, access, scopes

# The templates' rights: identities, actions and resources, in both clouds.

BUCKET = "arn:aws:s3:::made-bucket"
RUN = f"{BUCKET}/cloudtrain/runs/run-1"
TRAINING_JOB = f"arn:aws:sagemaker:{REGION}:{ACCOUNT}:training-job/run-1"
TUNING_JOB = f"arn:aws:sagemaker:{REGION}:{ACCOUNT}:hyper-parameter-tuning-job/sweep-1"
KEY = f"arn:aws:kms:{REGION}:{ACCOUNT}:key/made-key"
CONTAINERS = f"arn:aws:ecr:{REGION}:763104351884:repository"
LOG_GROUP = f"arn:aws:logs:{REGION}:{ACCOUNT}:log-group:/aws/sagemaker/TrainingJobs"
POLICIES = {"job": job_policy, "submitter": submitter_policy}

WITH_KEY = {"KmsKey": "new"}
WITH_DEBUG = {"RemoteDebug": "yes"}
OUR_TAG = {"aws:ResourceTag/cloudtrain-run": "run-1"}
OTHER_TAG = {"aws:ResourceTag/team": "speech"}
OUR_NEW_TAG = {"aws:RequestTag/cloudtrain-run": "run-1"}
AT_CREATION = {"sagemaker:TaggingAction": "CreateTrainingJob"}


class Row(NamedTuple):
    """One decision."""

    who: str
    action: str
    resource: str
    allowed: bool
    context: Mapping[str, str] = {}
    parameters: Mapping[str, str] = {}


AWS = [
    # A job writes results, but cannot change code that another job runs.
    Row("job", "s3:PutObject", f"{RUN}/output/model.tar.gz", True),
    Row("job", "s3:PutObject", f"{RUN}/output/output.tar.gz", True),
    Row("job", "s3:PutObject", f"{RUN}/checkpoints/step-10/rank-0.pt", True),
    Row("job", "s3:PutObject", f"{RUN}/profiler-output/system/1.json", True),
    Row("job", "s3:PutObject", f"{RUN}/tensorboard/events", True),
    Row("job", "s3:AbortMultipartUpload", f"{RUN}/output/model.tar.gz", True),
    Row("job", "s3:PutObject", f"{RUN}/job/0123/job.json", False),
    Row("job", "s3:PutObject", f"{RUN}/published/rungs.json", False),
    Row("job", "s3:PutObject", f"{BUCKET}/cloudtrain/sources/0123/source.tar.gz", False),
    Row("job", "s3:PutObject", f"{BUCKET}/data/train.bin", False),
    Row("job", "s3:DeleteObject", f"{RUN}/checkpoints/step-10/rank-0.pt", True),
    Row("job", "s3:DeleteObject", f"{RUN}/output/model.tar.gz", False),
    Row("job", "s3:DeleteObject", f"{RUN}/job/0123/job.json", False),
    Row("job", "s3:DeleteObject", f"{BUCKET}/data/train.bin", False),
    Row("job", "s3:DeleteObjectVersion", f"{RUN}/output/model.tar.gz", False),
    Row("job", "s3:PutBucketVersioning", BUCKET, False),
    # Every image that AWS publishes, and no image of other accounts.
    Row("job", "ecr:BatchGetImage", f"{CONTAINERS}/pytorch-training", True),
    Row("job", "ecr:BatchGetImage", f"{CONTAINERS}/huggingface-pytorch-training", True),
    Row(
        "job",
        "ecr:BatchGetImage",
        CONTAINERS.replace("763104351884", "999999999999") + "/any",
        False,
    ),
    Row("job", "ecr:PutImage", f"{CONTAINERS}/pytorch-training", False),
    Row("submitter", "ecr:BatchGetImage", f"{CONTAINERS}/huggingface-pytorch-training", True),
    Row("submitter", "ecr:PutImage", f"{CONTAINERS}/pytorch-training", False),
    # The log group is the whole account's.
    Row("job", "logs:PutLogEvents", f"{LOG_GROUP}:log-stream:run-1/algo-1-1", True),
    Row("job", "logs:PutRetentionPolicy", LOG_GROUP, False),
    Row("job", "logs:DeleteLogGroup", LOG_GROUP, False),
    Row(
        "job",
        "cloudwatch:PutMetricData",
        "*",
        True,
        {"cloudwatch:namespace": "/aws/sagemaker/TrainingJobs"},
    ),
    Row("job", "cloudwatch:PutMetricData", "*", False, {"cloudwatch:namespace": "AWS/Billing"}),
    # A key is used, and lent to services alone.
    *(
        Row("job", f"kms:{name}", KEY, True, parameters=WITH_KEY)
        for name in (
            *("Decrypt", "DescribeKey", "Encrypt", "GenerateDataKey"),
            *("GenerateDataKeyWithoutPlaintext", "ReEncryptFrom", "ReEncryptTo"),
        )
    ),
    Row("job", "kms:Encrypt", KEY, False),
    Row("job", "kms:CreateGrant", KEY, True, {"kms:GrantIsForAWSResource": "true"}, WITH_KEY),
    Row("job", "kms:CreateGrant", KEY, False, {"kms:GrantIsForAWSResource": "false"}, WITH_KEY),
    Row("job", "kms:CreateGrant", KEY, False, {}, WITH_KEY),
    Row("job", "kms:Encrypt", KEY.replace("made-key", "another"), False, {}, WITH_KEY),
    Row("job", "kms:PutKeyPolicy", KEY, False, {}, WITH_KEY),
    Row(
        "submitter", "kms:CreateGrant", KEY, False, {"kms:GrantIsForAWSResource": "true"}, WITH_KEY
    ),
    # A shell needs a channel.
    *(
        Row("job", f"ssmmessages:{name}Channel", "*", allowed, {}, parameters)
        for allowed, parameters in ((True, WITH_DEBUG), (False, {}))
        for name in ("CreateControl", "CreateData", "OpenControl", "OpenData")
    ),
    # Who submits starts jobs with our tag, and stops these.
    Row("submitter", "sagemaker:CreateTrainingJob", TRAINING_JOB, True, OUR_NEW_TAG),
    Row("submitter", "sagemaker:CreateTrainingJob", TRAINING_JOB, False),
    Row(
        "submitter",
        "sagemaker:CreateTrainingJob",
        TRAINING_JOB,
        False,
        {"aws:RequestTag/team": "speech"},
    ),
    Row("submitter", "sagemaker:CreateHyperParameterTuningJob", TUNING_JOB, True, OUR_NEW_TAG),
    Row("submitter", "sagemaker:CreateHyperParameterTuningJob", TUNING_JOB, False),
    Row("submitter", "sagemaker:AddTags", TRAINING_JOB, True, {**OUR_NEW_TAG, **AT_CREATION}),
    Row("submitter", "sagemaker:AddTags", TUNING_JOB, True, {**OUR_NEW_TAG, **AT_CREATION}),
    Row("submitter", "sagemaker:AddTags", TRAINING_JOB, False, OUR_NEW_TAG),
    Row("submitter", "sagemaker:AddTags", TRAINING_JOB, False, {**OUR_NEW_TAG, **OUR_TAG}),
    Row("submitter", "sagemaker:AddTags", TUNING_JOB, False, OUR_NEW_TAG),
    Row("submitter", "sagemaker:DeleteTags", TRAINING_JOB, False, OUR_TAG),
    *(
        Row("submitter", f"sagemaker:{name}", resource, allowed, context)
        for name, resource in (
            ("StopTrainingJob", TRAINING_JOB),
            ("UpdateTrainingJob", TRAINING_JOB),
            ("StopHyperParameterTuningJob", TUNING_JOB),
        )
        for allowed, context in ((True, OUR_TAG), (False, OTHER_TAG), (False, {}))
    ),
    Row("submitter", "sagemaker:DescribeTrainingJob", TRAINING_JOB, True),
    Row("submitter", "sagemaker:ListTags", TRAINING_JOB, True),
    # Who submits stores what a job is made of; results are written by jobs alone.
    Row("submitter", "s3:PutObject", f"{BUCKET}/cloudtrain/sources/0123/source.tar.gz", True),
    Row("submitter", "s3:PutObject", f"{RUN}/job/0123/job.json", True),
    Row("submitter", "s3:PutObject", f"{RUN}/published/rungs.json", True),
    Row("submitter", "s3:PutObject", f"{RUN}/output/model.tar.gz", False),
    Row("submitter", "s3:PutObject", f"{RUN}/checkpoints/step-10/rank-0.pt", False),
    Row("submitter", "s3:DeleteObject", f"{RUN}/output/model.tar.gz", False),
    Row("submitter", "s3:GetObject", f"{RUN}/output/model.tar.gz", True),
]


class AzureRow(NamedTuple):
    """One decision."""

    who: str
    action: str
    resource: str
    allowed: bool
    on_data: bool = False
    case: str = "everything"


BLOBS = "Microsoft.Storage/storageAccounts/blobServices/containers/blobs"
SECRETS = "Microsoft.KeyVault/vaults/secrets"
JOBS = "Microsoft.MachineLearningServices/workspaces/jobs"
REGISTRY = "Microsoft.ContainerRegistry/registries"
WHO = {"job": "cloudtrain-jobs", "submitter": PEOPLE[0]["id"], "github": "cloudtrain-github"}
DATA = True

AZURE = [
    # A job reads the secrets of the jobs' vault, but not the workspace's vault.
    AzureRow("job", f"{SECRETS}/getSecret/action", "jobs vault", True, DATA),
    *(
        AzureRow("job", f"{SECRETS}/getSecret/action", "workspace vault", False, DATA, case)
        for case in ("everything", "plain", "built-in role")
    ),
    AzureRow("job", f"{SECRETS}/setSecret/action", "jobs vault", False, DATA),
    AzureRow("submitter", f"{SECRETS}/getSecret/action", "jobs vault", False, DATA),
    AzureRow("github", f"{SECRETS}/getSecret/action", "jobs vault", False, DATA),
    # A job writes blobs, but cannot destroy their earlier versions.
    AzureRow("job", f"{BLOBS}/write", "storage", True, DATA),
    AzureRow("job", f"{BLOBS}/deleteBlobVersion/action", "storage", False, DATA),
    AzureRow("job", f"{BLOBS}/permanentDelete/action", "storage", False, DATA),
    AzureRow("job", "Microsoft.Storage/storageAccounts/listKeys/action", "storage", False),
    # A job pulls images, and neither pushes images nor starts jobs.
    AzureRow("job", f"{REGISTRY}/push/write", "registry", False),
    AzureRow("job", f"{JOBS}/write", "workspace", False),
    *(
        AzureRow(who, action, "workspace", allowed)
        for who in ("submitter", "github")
        for action, allowed in (
            (f"{JOBS}/write", True),
            (f"{JOBS}/delete", False),
            ("Microsoft.Authorization/roleAssignments/write", False),
        )
    ),
]


def name_of(row: Row | AzureRow) -> str:
    return (
        f"{row.who}-{row.action}-{row.resource.rpartition('/')[2]}-{'yes' if row.allowed else 'no'}"
    )


@pytest.mark.parametrize("row", AWS, ids=name_of)
def test_policies_decide_as_the_table_says(row: Row) -> None:
    attempt = Attempt(action=row.action, resource=row.resource, context=row.context)
    assert is_allowed(attempt, POLICIES[row.who](**row.parameters)) == row.allowed


@pytest.mark.parametrize("row", AZURE, ids=name_of)
def test_roles_decide_as_the_table_says(row: AzureRow) -> None:
    scope = scopes(row.case)[row.resource]
    attempt = AzureAttempt(action=row.action, scope=scope, on_data=row.on_data)
    assert access(row.case).allows(WHO[row.who], attempt) == row.allowed


def test_log_lines_expire_only_on_request() -> None:
    created = resolved(CreateLogGroup="yes").properties("LogGroup")
    assert created == {"LogGroupName": "/aws/sagemaker/TrainingJobs"}


# Doctor simulates exactly the actions that infra grants.


def account(tmp_path: Path, **more: Any) -> Account:
    """That of the template, for a job of the shared trainer."""
    aws = {
        "region": REGION,
        "role": f"arn:aws:iam::{ACCOUNT}:role/made-role",
        "bucket": "made-bucket",
    }
    job = cloudtrain.load({"name": "digits", "aws": aws, **more})
    target = get_provider("aws").target(
        load_settings(tmp_path, environ={"HOME": str(tmp_path)}), job.spec
    )
    assert not target.problems
    return Account(
        cloud=cast(Any, None), config=target.config_as(AwsConfig), target=target, spec=job.spec
    )


def denied(needs: list[Need], policy: list[Statement]) -> list[str]:
    attempts = [
        Attempt(action=action, resource=need.resource, context=need.context)
        for need in needs
        for action in need.actions
    ]
    assert attempts
    return [
        f"{attempt.action} on {attempt.resource}"
        for attempt in attempts
        if not is_allowed(attempt, policy)
    ]


def test_doctor_finds_no_right_missing_in_an_account_that_infra_made(tmp_path: Path) -> None:
    token = {
        "TOKEN": {"aws": "secretsmanager:cloudtrain/token"},
        "KEY": {"aws": "ssm:/cloudtrain/key"},
    }
    made = account(tmp_path, secrets=token)
    assert denied(needs_of_submit(made), submitter_policy()) == []
    assert denied(needs_of_job(made), job_policy()) == []
    trust = resolved().properties("ExecutionRole")["AssumeRolePolicyDocument"]
    assert distrust(trust) == ""


def test_doctor_asks_for_nothing_that_is_not_listed(tmp_path: Path) -> None:
    made = account(tmp_path)
    actions = {action for need in needs_of_submit(made) for action in need.actions}
    assert actions <= set(SUBMITTER)
    actions = {action for need in needs_of_job(made) for action in need.actions}
    assert actions <= set(JOB)
