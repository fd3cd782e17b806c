"""The templates' rights, and doctor's questions about them."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product
from pathlib import Path
from typing import Any

import pytest

import cloudtrain
from cloudtrain.providers.aws.config import connect
from cloudtrain.providers.aws.rights import (
    UNASKED,
    context_of,
    resources_of,
    rights_of,
)
from cloudtrain.providers.aws.things import Things
from tests.fakes.aws.policies import Attempt, Statement, is_allowed
from tests.fakes.azure.rights import Attempt as AzureAttempt
from tests.support.aws_template import (
    ACCOUNT,
    REGION,
    job_policy,
    resolved,
    submitter_policy,
)
from tests.support.azure_template import PEOPLE as AZURE_PEOPLE
from tests.support.azure_template import access, scopes

# The templates' rights: identities, actions and resources, in both clouds.

BUCKET = "arn:aws:s3:::made-bucket"
RUN = f"{BUCKET}/cloudtrain/runs/run-1"
ROLE = f"arn:aws:iam::{ACCOUNT}:role/made-role"
TRAINING_PLAN = f"arn:aws:sagemaker:{REGION}:{ACCOUNT}:training-plan/mine"
TRAINING_JOB = f"arn:aws:sagemaker:{REGION}:{ACCOUNT}:training-job/run-1"
QUEUE = f"arn:aws:batch:{REGION}:{ACCOUNT}:job-queue/cloudtrain"
SERVICE_JOB = f"arn:aws:batch:{REGION}:{ACCOUNT}:service-job/0123"
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
    "to-sagemaker": {"iam:PassedToService": "sagemaker.amazonaws.com"},
    "to-ec2": {"iam:PassedToService": "ec2.amazonaws.com"},
    "for-a-person": {"kms:GrantIsForAWSResource": "false"},
    "metrics-of-jobs": {"cloudwatch:namespace": "/aws/sagemaker/TrainingJobs"},
    "metrics-of-bills": {"cloudwatch:namespace": "AWS/Billing"},
}
"""Contexts of attempts by the words of the table."""

PARAMETERS = {
    "with-key": {"KmsKey": "new"},
    "with-queue": {"Queue": "new"},
    "with-debug": {"RemoteDebug": "yes"},
    "with-removal": {"RemoveRuns": "yes"},
}
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
job may-not s3:PutObject {BUCKET}/cloudtrain/inputs/0123/train.bin
job may s3:GetObject {BUCKET}/cloudtrain/inputs/0123/train.bin
submitter may s3:AbortMultipartUpload {BUCKET}/cloudtrain/inputs/0123/train.bin
submitter may-not s3:DeleteObject {BUCKET}/cloudtrain/inputs/0123/train.bin
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
# Who submits puts jobs with our tag into one queue, and takes these out of it.
submitter may batch:SubmitServiceJob {QUEUE} our-new-tag with-queue
submitter may batch:SubmitServiceJob {SERVICE_JOB} our-new-tag with-queue
submitter may-not batch:SubmitServiceJob {QUEUE} our-new-tag
submitter may-not batch:SubmitServiceJob {QUEUE} other-new-tag with-queue
submitter may-not batch:SubmitServiceJob {QUEUE}s our-new-tag with-queue
submitter may batch:TerminateServiceJob {SERVICE_JOB} our-tag with-queue
submitter may-not batch:TerminateServiceJob {SERVICE_JOB} other-tag with-queue
submitter may batch:GetJobQueueSnapshot {QUEUE} with-queue
submitter may-not batch:UpdateServiceJob {SERVICE_JOB} our-tag with-queue
# Who submits passes the job's role, to SageMaker alone.
submitter may iam:PassRole {ROLE} to-sagemaker
submitter may-not iam:PassRole {ROLE} to-ec2
submitter may-not iam:PassRole {ROLE}
submitter may-not iam:PassRole {ROLE}s to-sagemaker
submitter may-not iam:PassRole {ROLE.replace(ACCOUNT, "999999999999")} to-sagemaker
# Who submits stores what a job is made of; results are written by jobs alone.
submitter may s3:PutObject {BUCKET}/cloudtrain/sources/0123/source.tar.gz
submitter may s3:PutObject {RUN}/job/0123/job.json
submitter may s3:PutObject {RUN}/published/rungs.json
submitter may-not s3:PutObject {RUN}/output/model.tar.gz
submitter may-not s3:PutObject {RUN}/checkpoints/step-10/rank-0.pt
submitter may-not s3:DeleteObject {RUN}/output/model.tar.gz
submitter may s3:DeleteObject {RUN}/output/model.tar.gz with-removal
submitter may-not s3:DeleteObjectVersion {RUN}/output/model.tar.gz with-removal
submitter may-not s3:DeleteObject {BUCKET}/cloudtrain/inputs/0123/train.bin with-removal
submitter may-not s3:DeleteObject {BUCKET}/cloudtrain/sources/0123/source.tar.gz with-removal
submitter may s3:GetObject {RUN}/output/model.tar.gz
"""

BLOBS = "Microsoft.Storage/storageAccounts/blobServices/containers/blobs"
SECRETS = "Microsoft.KeyVault/vaults/secrets"
JOBS = "Microsoft.MachineLearningServices/workspaces/jobs"
REGISTRY = "Microsoft.ContainerRegistry/registries"
WHO = {"job": "cloudtrain-jobs", "submitter": AZURE_PEOPLE[0]["id"], "github": "cloudtrain-github"}

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


# Doctor simulates rights that infra grants, on the things of a request.


def things_of(**more: Any) -> Things:
    """Return those of a job of the shared trainer in the template's account."""
    aws = {
        "region": REGION,
        "role": ROLE,
        "bucket": "made-bucket",
        **more.pop("aws", {}),
    }
    plan = cloudtrain.plan(cloudtrain.load({"name": "digits", "aws": aws, **more}), "aws")
    return Things(connect(REGION), plan)


def denied(things: Things, who: str, policy: list[Statement]) -> dict[str, list[str]]:
    """Return what a policy does not allow of a request's rights, by purpose."""
    missing: dict[str, list[str]] = {}
    for purpose in rights_of(who).keys() - {UNASKED}:
        for kind, names in rights_of(who)[purpose].items():
            for action, resource in product(names, resources_of(things).get(kind, ())):
                context = {
                    key: str(value).lower() for key, value in context_of(things, action).items()
                }
                attempt = Attempt(action=action, resource=resource, context=context)
                if not is_allowed(attempt, policy):
                    missing.setdefault(purpose, []).append(f"{action} on {resource}")
    return missing


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_doctor_finds_no_right_missing_in_an_account_that_infra_made() -> None:
    token = {
        "TOKEN": {"aws": "secretsmanager:cloudtrain/token"},
        "KEY": {"aws": "ssm:/cloudtrain/key"},
    }
    Path("train.bin").write_text("1")
    inputs = {"train": "train.bin"}
    network = {"subnets": ["subnet-0aaa"], "security_groups": ["sg-0aaa"]}
    things = things_of(
        secrets=token, inputs=inputs, aws={**network, "kms_key": KEY, "remote_debug": True}
    )
    more = {"KmsKey": "new", "Network": "existing", "RemoteDebug": "yes"}
    assert denied(things, "people", submitter_policy(**more)) == {}
    assert denied(things, "role", job_policy(**more)) == {}


def test_doctor_finds_no_right_missing_for_a_tuning_job() -> None:
    sweep = {
        "engine": "native",
        "objective": {"metric": "val_loss", "goal": "minimize"},
        "method": "random",
        "space": {"lr": "uniform(0, 1)"},
        "trials": 4,
    }
    assert "tuning job" in resources_of(things_of(sweep=sweep))
    assert denied(things_of(sweep=sweep), "people", submitter_policy()) == {}


def test_doctor_finds_no_right_missing_for_a_job_in_a_queue() -> None:
    things = things_of(aws={"queue": "cloudtrain"})
    assert denied(things, "people", submitter_policy(Queue="new")) == {}
    assert denied(things, "people", submitter_policy()).keys() == {
        *("submitting", "following", "stopping")
    }


def test_doctor_asks_for_access_to_an_output_outside_the_bucket() -> None:
    theirs = things_of(aws={"output": "s3://results/of/"})
    key = f"arn:aws:s3:::results/of/{theirs.plan.run_id}/output/model.tar.gz"
    people = [f"s3:GetObject on {key}", "s3:ListBucket on arn:aws:s3:::results"]
    assert denied(theirs, "people", submitter_policy()) == {"fetching": people}
    job = ["s3:ListBucket on arn:aws:s3:::results", f"s3:PutObject on {key}"]
    assert denied(theirs, "role", job_policy()) == {"role's rights": job}


def test_doctor_asks_with_the_condition_keys_of_the_request() -> None:
    things = things_of(aws={"network_isolation": True}, limits={"max_runtime": "1 h"})
    context = context_of(things, "sagemaker:CreateTrainingJob")
    assert context["sagemaker:NetworkIsolation"] is True
    assert context["sagemaker:InterContainerTrafficEncryption"] is False
    assert context["sagemaker:InstanceTypes"] == ["ml.m5.xlarge"]
    assert "sagemaker:VpcSubnets" not in context
    assert context["aws:RequestTag/cloudtrain-run"] == things.plan.run_id
    stop = context_of(things, "sagemaker:StopTrainingJob")
    assert stop["aws:ResourceTag/cloudtrain-run"] == things.plan.run_id
