"""The templates' rights, and doctor's questions about them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import pytest

import cloudtrain
from cloudtrain.providers import get_provider
from cloudtrain.providers.aws.config import AwsConfig
from cloudtrain.providers.aws.policies import distrust
from cloudtrain.providers.aws.rights import Account, Need, needs_of_job, needs_of_submit
from cloudtrain.settings import load_settings
from tests.fakes.aws.policies import Attempt, Statement, is_allowed
from tests.fakes.azure.rights import Attempt as AzureAttempt
from tests.support.aws_template import (
    ACCOUNT,
    JOB,
    REGION,
    SUBMITTER,
    job_policy,
    resolved,
    submitter_policy,
)
from tests.support.azure_template import PEOPLE, access, scopes

# The templates' rights: identities, actions and resources, in both clouds.

BUCKET = "arn:aws:s3:::made-bucket"
RUN = f"{BUCKET}/cloudtrain/runs/run-1"
TRAINING_PLAN = f"arn:aws:sagemaker:{REGION}:{ACCOUNT}:training-plan/mine"
TRAINING_JOB = f"arn:aws:sagemaker:{REGION}:{ACCOUNT}:training-job/run-1"
TUNING_JOB = f"arn:aws:sagemaker:{REGION}:{ACCOUNT}:hyper-parameter-tuning-job/sweep-1"
KEY = f"arn:aws:kms:{REGION}:{ACCOUNT}:key/made-key"
CONTAINERS = f"arn:aws:ecr:{REGION}:763104351884:repository"
LOG_GROUP = f"arn:aws:logs:{REGION}:{ACCOUNT}:log-group:/aws/sagemaker/TrainingJobs"
SECRET = f"arn:aws:secretsmanager:{REGION}:{ACCOUNT}:secret"
PARAMETER = f"arn:aws:ssm:{REGION}:{ACCOUNT}:parameter"
POLICIES = {"job": job_policy, "submitter": submitter_policy}

CIRCUMSTANCES: Mapping[str, Mapping[str, str]] = {
    "our-tag": {"aws:ResourceTag/cloudtrain-run": "run-1"},
    "other-tag": {"aws:ResourceTag/team": "speech"},
    "our-new-tag": {"aws:RequestTag/cloudtrain-run": "run-1"},
    "other-new-tag": {"aws:RequestTag/team": "speech"},
    "at-creation": {"sagemaker:TaggingAction": "CreateTrainingJob"},
    "for-a-service": {"kms:GrantIsForAWSResource": "true"},
    "for-a-person": {"kms:GrantIsForAWSResource": "false"},
    "metrics-of-jobs": {"cloudwatch:namespace": "/aws/sagemaker/TrainingJobs"},
    "metrics-of-bills": {"cloudwatch:namespace": "AWS/Billing"},
}
"""Contexts of attempts by the words of the table."""

PARAMETERS = {"with-key": {"KmsKey": "new"}, "with-debug": {"RemoteDebug": "yes"}}
"""Parameters of the template by the words of the table."""

AWS = f"""
# A job writes results, but cannot change code that another job runs.
job may s3:PutObject {RUN}/output/model.tar.gz
job may s3:PutObject {RUN}/output/output.tar.gz
job may s3:PutObject {RUN}/checkpoints/step-10/rank-0.pt
job may s3:PutObject {RUN}/profiler-output/system/1.json
job may s3:PutObject {RUN}/tensorboard/events
job may s3:AbortMultipartUpload {RUN}/output/model.tar.gz
job may-not s3:PutObject {RUN}/job/0123/job.json
job may-not s3:PutObject {RUN}/published/rungs.json
job may-not s3:PutObject {BUCKET}/cloudtrain/sources/0123/source.tar.gz
job may-not s3:PutObject {BUCKET}/data/train.bin
job may s3:DeleteObject {RUN}/checkpoints/step-10/rank-0.pt
job may-not s3:DeleteObject {RUN}/output/model.tar.gz
job may-not s3:DeleteObject {RUN}/job/0123/job.json
job may-not s3:DeleteObject {BUCKET}/data/train.bin
job may-not s3:DeleteObjectVersion {RUN}/output/model.tar.gz
job may-not s3:PutBucketVersioning {BUCKET}
# Every image that AWS publishes, and no image of other accounts.
job may ecr:BatchGetImage {CONTAINERS}/pytorch-training
job may ecr:BatchGetImage {CONTAINERS}/huggingface-pytorch-training
job may-not ecr:BatchGetImage {CONTAINERS.replace("763104351884", "999999999999")}/any
job may-not ecr:PutImage {CONTAINERS}/pytorch-training
submitter may ecr:BatchGetImage {CONTAINERS}/huggingface-pytorch-training
submitter may-not ecr:PutImage {CONTAINERS}/pytorch-training
# Secrets under the stack's name, and no other.
job may secretsmanager:GetSecretValue {SECRET}:cloudtrain/token-Ab12
job may-not secretsmanager:GetSecretValue {SECRET}:others/token-Ab12
job may ssm:GetParameter {PARAMETER}/cloudtrain/token
job may-not ssm:GetParameter {PARAMETER}/others/token
# The log group is the whole account's.
job may logs:PutLogEvents {LOG_GROUP}:log-stream:run-1/algo-1-1
job may-not logs:PutRetentionPolicy {LOG_GROUP}
job may-not logs:DeleteLogGroup {LOG_GROUP}
job may cloudwatch:PutMetricData * metrics-of-jobs
job may-not cloudwatch:PutMetricData * metrics-of-bills
# A key is used, and lent to services alone.
job may kms:Decrypt {KEY} with-key
job may kms:DescribeKey {KEY} with-key
job may kms:Encrypt {KEY} with-key
job may kms:GenerateDataKey {KEY} with-key
job may kms:GenerateDataKeyWithoutPlaintext {KEY} with-key
job may kms:ReEncryptFrom {KEY} with-key
job may kms:ReEncryptTo {KEY} with-key
job may-not kms:Encrypt {KEY}
job may kms:CreateGrant {KEY} for-a-service with-key
job may-not kms:CreateGrant {KEY} for-a-person with-key
job may-not kms:CreateGrant {KEY} with-key
job may-not kms:Encrypt {KEY.replace("made-key", "another")} with-key
job may-not kms:PutKeyPolicy {KEY} with-key
submitter may-not kms:CreateGrant {KEY} for-a-service with-key
# A shell needs a channel.
job may ssmmessages:CreateControlChannel * with-debug
job may ssmmessages:CreateDataChannel * with-debug
job may ssmmessages:OpenControlChannel * with-debug
job may ssmmessages:OpenDataChannel * with-debug
job may-not ssmmessages:CreateControlChannel *
job may-not ssmmessages:CreateDataChannel *
job may-not ssmmessages:OpenControlChannel *
job may-not ssmmessages:OpenDataChannel *
# Who submits starts jobs with our tag, and stops these.
submitter may sagemaker:CreateTrainingJob {TRAINING_JOB} our-new-tag
submitter may-not sagemaker:CreateTrainingJob {TRAINING_JOB}
submitter may-not sagemaker:CreateTrainingJob {TRAINING_JOB} other-new-tag
submitter may sagemaker:CreateTrainingJob {TRAINING_PLAN} our-new-tag
submitter may-not sagemaker:CreateTrainingJob {TRAINING_PLAN}
submitter may sagemaker:CreateHyperParameterTuningJob {TUNING_JOB} our-new-tag
submitter may-not sagemaker:CreateHyperParameterTuningJob {TUNING_JOB}
submitter may sagemaker:AddTags {TRAINING_JOB} our-new-tag at-creation
submitter may sagemaker:AddTags {TUNING_JOB} our-new-tag at-creation
submitter may-not sagemaker:AddTags {TRAINING_JOB} our-new-tag
submitter may-not sagemaker:AddTags {TRAINING_JOB} our-new-tag our-tag
submitter may-not sagemaker:AddTags {TUNING_JOB} our-new-tag
submitter may-not sagemaker:DeleteTags {TRAINING_JOB} our-tag
submitter may sagemaker:StopTrainingJob {TRAINING_JOB} our-tag
submitter may-not sagemaker:StopTrainingJob {TRAINING_JOB} other-tag
submitter may-not sagemaker:StopTrainingJob {TRAINING_JOB}
submitter may sagemaker:UpdateTrainingJob {TRAINING_JOB} our-tag
submitter may-not sagemaker:UpdateTrainingJob {TRAINING_JOB} other-tag
submitter may-not sagemaker:UpdateTrainingJob {TRAINING_JOB}
submitter may sagemaker:StopHyperParameterTuningJob {TUNING_JOB} our-tag
submitter may-not sagemaker:StopHyperParameterTuningJob {TUNING_JOB} other-tag
submitter may-not sagemaker:StopHyperParameterTuningJob {TUNING_JOB}
submitter may sagemaker:DescribeTrainingJob {TRAINING_JOB}
submitter may sagemaker:ListTags {TRAINING_JOB}
# Who submits stores what a job is made of; results are written by jobs alone.
submitter may s3:PutObject {BUCKET}/cloudtrain/sources/0123/source.tar.gz
submitter may s3:PutObject {RUN}/job/0123/job.json
submitter may s3:PutObject {RUN}/published/rungs.json
submitter may-not s3:PutObject {RUN}/output/model.tar.gz
submitter may-not s3:PutObject {RUN}/checkpoints/step-10/rank-0.pt
submitter may-not s3:DeleteObject {RUN}/output/model.tar.gz
submitter may s3:GetObject {RUN}/output/model.tar.gz
"""

BLOBS = "Microsoft.Storage/storageAccounts/blobServices/containers/blobs"
SECRETS = "Microsoft.KeyVault/vaults/secrets"
JOBS = "Microsoft.MachineLearningServices/workspaces/jobs"
REGISTRY = "Microsoft.ContainerRegistry/registries"
WHO = {"job": "cloudtrain-jobs", "submitter": PEOPLE[0]["id"], "github": "cloudtrain-github"}

AZURE = f"""
# A job reads the secrets of the jobs' vault, but not the workspace's vault.
job may {SECRETS}/getSecret/action jobs-vault on-data
job may-not {SECRETS}/getSecret/action workspace-vault on-data
job may-not {SECRETS}/getSecret/action workspace-vault on-data plain
job may-not {SECRETS}/getSecret/action workspace-vault on-data built-in-role
job may-not {SECRETS}/setSecret/action jobs-vault on-data
submitter may-not {SECRETS}/getSecret/action jobs-vault on-data
github may-not {SECRETS}/getSecret/action jobs-vault on-data
# A job writes blobs, but cannot destroy their earlier versions.
job may {BLOBS}/write storage on-data
job may-not {BLOBS}/deleteBlobVersion/action storage on-data
job may-not {BLOBS}/permanentDelete/action storage on-data
job may-not Microsoft.Storage/storageAccounts/listKeys/action storage
# A job pulls images, and neither pushes images nor starts jobs.
job may-not {REGISTRY}/push/write registry
job may-not {JOBS}/write workspace
submitter may {JOBS}/write workspace
submitter may-not {JOBS}/delete workspace
submitter may-not Microsoft.Authorization/roleAssignments/write workspace
github may {JOBS}/write workspace
github may-not {JOBS}/delete workspace
github may-not Microsoft.Authorization/roleAssignments/write workspace
"""


def rows(table: str) -> list[str]:
    return [line for line in table.splitlines() if line and not line.startswith("#")]


@pytest.mark.parametrize("row", rows(AWS))
def test_policies_decide_as_the_table_says(row: str) -> None:
    who, decision, action, resource, *words = row.split()
    context: dict[str, str] = {}
    parameters: dict[str, str] = {}
    for word in words:
        if word in PARAMETERS:
            parameters |= PARAMETERS[word]
        else:
            context |= CIRCUMSTANCES[word]
    attempt = Attempt(action=action, resource=resource, context=context)
    assert is_allowed(attempt, POLICIES[who](**parameters)) == (decision == "may")


@pytest.mark.parametrize("row", rows(AZURE))
def test_roles_decide_as_the_table_says(row: str) -> None:
    who, decision, action, resource, *words = row.split()
    case = words[-1].replace("-in-", "-in ") if words[1:] else "everything"
    scope = scopes(case)[resource.replace("-", " ")]
    attempt = AzureAttempt(action=action, scope=scope, on_data="on-data" in words)
    assert access(case).allows(WHO[who], attempt) == (decision == "may")


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
        **more.pop("aws", {}),
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
    job = "arn:aws:sagemaker:us-east-1:123456789012:training-job/*"
    assert distrust(trust, "123456789012", job) == ""


def test_doctor_asks_for_access_to_an_output_outside_the_bucket(tmp_path: Path) -> None:
    theirs = account(tmp_path, aws={"output": "s3://results/of/"})
    place = "arn:aws:s3:::results/of/*"
    assert denied(needs_of_submit(theirs), submitter_policy()) == [f"s3:GetObject on {place}"]
    assert denied(needs_of_job(theirs), job_policy()) == [f"s3:PutObject on {place}"]


def test_doctor_asks_for_nothing_that_is_not_listed(tmp_path: Path) -> None:
    made = account(tmp_path)
    actions = {action for need in needs_of_submit(made) for action in need.actions}
    assert actions <= set(SUBMITTER)
    actions = {action for need in needs_of_job(made) for action in need.actions}
    assert actions <= set(JOB)
