"""`cloudtrain infra --provider aws` from an empty account on loopback: up, show, down, what fails,
how it goes on.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import cloudtrain
from tests.fakes.aws.cloud import ACCOUNT, Cloud
from tests.fakes.aws.policies import statements
from tests.fakes.aws.rights import check_stage
from tests.support.command_line import CommandResult
from tests.support.in_process import call

UP = ("infra", "up", "--provider", "aws", "--yes")
DOWN = ("infra", "down", "--provider", "aws", "--yes")
LOG_GROUP = "/aws/sagemaker/TrainingJobs"
WHOLE = (
    *(
        "--set",
        "kms_key=new",
        "--set",
        "network=new",
        "--set",
        "secret_endpoints=yes",
        "--set",
        "budget=50",
    ),
    *(
        "--set",
        "alarm_email=me@example.org",
        "--set",
        "github_subject=repo:me/mine:ref:refs/heads/main",
    ),
)


@pytest.fixture(autouse=True)
def empty_account(cloud: Cloud, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """An account with nothing of ours, of which nobody has named a role or a bucket yet."""
    cloud.empty()
    for name in ("ROLE", "BUCKET"):
        monkeypatch.delenv(f"CLOUDTRAIN_AWS_{name}")
    monkeypatch.setenv("CLOUDTRAIN_AWS_POLL", "0.05")
    yield
    assert not cloud.account.unexpected_errors, "\n".join(cloud.account.unexpected_errors)


def up(*words: str) -> CommandResult:
    return call(*UP, *words)


def document(*words: str) -> dict[str, Any]:
    said = call(*words, "--json")
    assert said.code == 0, said.err
    found: dict[str, Any] = json.loads(said.out)
    return found


def actions(plan: dict[str, Any]) -> dict[str, str]:
    return {each["resource"]: each["action"] for each in plan["changes"]}


def test_up_makes_an_empty_account_ready_and_tells_what_it_did(cloud: Cloud) -> None:
    said = up()
    assert said.code == 0, said.err
    bucket, role = (cloud.stacks.stack("cloudtrain").outputs[name] for name in ("Bucket", "Role"))
    for part in (f"account {ACCOUNT}, us-east-1", "create  S3 bucket", "while no job runs: 0 USD a month",
                 "created   IAM role (ExecutionRole)", f'+ role = "{role}"'):  # fmt: skip
        assert part in said.err
    assert f'bucket = "{bucket}"' in Path("cloudtrain.toml").read_text()
    assert said.out.startswith("policy to attach to people who submit: arn:aws:iam::")
    s3 = cloud.client("s3", direct=True)
    assert s3.get_bucket_versioning(Bucket=bucket)["Status"] == "Enabled"
    assert s3.get_public_access_block(Bucket=bucket)["PublicAccessBlockConfiguration"][
        "BlockPublicPolicy"
    ]


def test_the_settings_that_up_writes_are_those_that_a_plan_takes(cloud: Cloud) -> None:
    up()
    Path("job.yaml").write_text(
        "name: a\nentrypoint: train.py\nresources: {instance: {aws: ml.m5.xlarge}}\nimage:"
        " dlc:pytorch-2.8\n"
    )
    planned = document("plan", "--provider", "aws")
    assert planned["RoleArn"] == cloud.stacks.stack("cloudtrain").outputs["Role"]


def test_up_again_changes_nothing_and_a_new_choice_changes_what_it_must(cloud: Cloud) -> None:
    up()
    written = Path("cloudtrain.toml").read_text()
    said = up()
    assert (said.code, Path("cloudtrain.toml").read_text()) == (0, written)
    assert "nothing to do" in said.err
    changed = document(*UP, "--set", "run_days=90")
    assert actions(changed["plan"]) == {
        "Bucket": "update",
        "Repository": "keep",
        "LogGroup": "keep",
    }
    assert document(*UP)["plan"]["parameters"]["run_days"] == "90", "kept from the time before"
    more = document(*UP, "--set", "network=new")
    assert actions(more["plan"])["SecurityGroup"] == "create"
    assert actions(more["plan"])["ExecutionRole"] == "update"
    less = document(*UP, "--set", "network=none")
    assert actions(less["plan"])["Vpc"] == "delete"


def test_everything_at_once_says_what_costs_money_while_no_job_runs(cloud: Cloud) -> None:
    plan = document("infra", "up", "--provider", "aws", "--dry-run", *WHOLE)["plan"]
    assert plan["idle_usd_per_month"] == pytest.approx(1.00 + 2 * 14.60)
    assert "no way to the internet" in " ".join(plan["notes"])
    assert cloud.stacks.find("cloudtrain") is None, (
        "a dry run leaves no stack, not even an empty one"
    )
    done = document(*UP, *WHOLE)["deployment"]
    assert done["state"] == "ready"
    assert set(done["outputs"]) == {
        "policy to attach to people who submit",
        "role for the GitHub workflow",
    }
    assert len(done["settings"]["aws.subnets"]) == 2
    assert document("infra", "show", "--provider", "aws") == done


def test_what_a_change_leaves_as_it_is_is_counted_with_what_it_costs(cloud: Cloud) -> None:
    up("--set", "kms_key=new")
    plan = document("infra", "up", "--provider", "aws", "--dry-run", "--set", "run_days=90")["plan"]
    assert actions(plan)["Key"] == "keep"
    assert plan["idle_usd_per_month"] == 1.00
    again = document(*UP)["plan"]
    assert (set(actions(again).values()), again["idle_usd_per_month"]) == ({"keep"}, 1.00)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--name", "Bad Name"), "--name Bad Name: CloudFormation takes no such names"),
        (("--region", "us east"), "'us east' is not a region"),
        (("--set", "bucket=not-there"), "--set bucket=not-there: there is no such bucket"),
        (
            ("--set", "repository=not-there"),
            "--set repository=not-there: there is no such ECR repository",
        ),
    ],
)
def test_what_cannot_be_is_refused_before_there_is_a_stack(
    cloud: Cloud, words: tuple[str, ...], message: str
) -> None:
    said = up(*words)
    assert said.code == 2
    assert message in said.err
    assert cloud.stacks.find("cloudtrain") is None


def test_a_bucket_that_may_not_be_looked_at_is_left_to_the_stack(cloud: Cloud) -> None:
    cloud.account.denied_actions.add("s3:ListBucket")
    assert call("infra", "up", "--provider", "aws", "--dry-run", "--set", "bucket=theirs").code == 0


def test_a_choice_that_makes_nothing_is_told(cloud: Cloud) -> None:
    notes = document(
        "infra", "up", "--provider", "aws", "--dry-run", "--set", "secret_endpoints=yes"
    )["plan"]["notes"]
    assert notes == ["secret_endpoints=yes makes nothing without network=new"]


@pytest.mark.parametrize("days", [None, 365])
@pytest.mark.parametrize("words", [(), ("--set", "log_days=30")])
def test_the_retention_of_an_existing_log_group_stays(
    cloud: Cloud,
    days: int | None,
    words: tuple[str, ...],
) -> None:
    logs = cloud.client("logs", direct=True)
    logs.create_log_group(logGroupName=LOG_GROUP)
    if days:
        logs.put_retention_policy(logGroupName=LOG_GROUP, retentionInDays=days)
    assert "LogGroup" not in actions(document(*UP, *words)["plan"])
    [group] = logs.describe_log_groups(logGroupNamePrefix=LOG_GROUP)["logGroups"]
    assert group.get("retentionInDays") == days
    assert "LogGroup" not in cloud.stacks.stack("cloudtrain").resources


def test_the_provider_for_github_that_the_account_has_is_used(cloud: Cloud) -> None:
    iam = cloud.client("iam", direct=True)
    arguments = {
        "Url": "https://token.actions.githubusercontent.com",
        "ClientIDList": ["sts.amazonaws.com"],
    }
    arn = iam.create_open_id_connect_provider(**arguments)["OpenIDConnectProviderArn"]
    plan = document(*UP, *WHOLE)["plan"]
    assert "GitHubProvider" not in actions(plan)
    assert plan["parameters"]["github_provider"] == arn


def test_down_leaves_the_data_and_names_it_and_up_can_use_it_again(cloud: Cloud) -> None:
    up()
    outputs = cloud.stacks.stack("cloudtrain").outputs
    s3 = cloud.client("s3", direct=True)
    s3.put_object(Bucket=outputs["Bucket"], Key="cloudtrain/runs/a/model", Body=b"weights")
    said = call(*DOWN)
    assert said.code == 0, said.err
    assert f"kept, and billed by what is stored: S3 bucket {outputs['Bucket']}" in said.err
    assert (
        s3.get_object(Bucket=outputs["Bucket"], Key="cloudtrain/runs/a/model")["Body"].read()
        == b"weights"
    )
    assert "kept      bucket policy (BucketPolicy)" in said.err, (
        "nobody reads it by plain HTTP now either"
    )
    assert cloud.client("iam", direct=True).list_roles()["Roles"] == []
    shown = document("infra", "show", "--provider", "aws")
    assert shown["state"] == "absent"
    assert outputs["Bucket"] in [each["identity"] for each in shown["resources"]]
    again = document("infra", "up", "--provider", "aws", "--dry-run")["plan"]
    assert f"--set bucket={outputs['Bucket']} uses it again" in " ".join(again["notes"])
    made = document(*UP, "--set", f"bucket={outputs['Bucket']}")
    assert "Bucket" not in actions(made["plan"])
    assert made["deployment"]["settings"]["aws.bucket"] == outputs["Bucket"]


def test_down_with_delete_data_leaves_nothing_but_the_accounts_log(cloud: Cloud) -> None:
    up("--set", "kms_key=new")
    outputs = cloud.stacks.stack("cloudtrain").outputs
    s3 = cloud.client("s3", direct=True)
    bucket = outputs["Bucket"]
    for body in (b"1", b"2"):
        s3.put_object(Bucket=bucket, Key="cloudtrain/x", Body=body)
    s3.delete_object(Bucket=bucket, Key="cloudtrain/x")
    s3.create_multipart_upload(Bucket=bucket, Key="cloudtrain/y")
    repository = outputs["Repository"].rpartition("/")[2]
    cloud.registry.images.put(repository, "1", "amd64")
    said = call(*DOWN, "--delete-data")
    assert said.code == 0, said.err
    assert [each["Name"] for each in s3.list_buckets()["Buckets"]] == [cloud.bucket]
    assert not cloud.registry.images.has(repository)
    kms = cloud.client("kms", direct=True)
    [key] = kms.list_keys()["Keys"]
    assert kms.describe_key(KeyId=key["KeyId"])["KeyMetadata"]["KeyState"] == "PendingDeletion"
    assert "holds the lines of all training jobs of the account" in said.err
    assert document("infra", "show", "--provider", "aws")["resources"] == []
    assert "nothing to do" in call(*DOWN, "--delete-data").err


def test_data_that_an_earlier_down_has_left_is_deleted_by_a_later_one(cloud: Cloud) -> None:
    up()
    bucket = cloud.stacks.stack("cloudtrain").outputs["Bucket"]
    call(*DOWN)
    plan = document(*DOWN, "--delete-data")["plan"]
    assert actions(plan) == {"Bucket": "delete", "Repository": "delete"}
    assert bucket not in [
        each["Name"] for each in cloud.client("s3", direct=True).list_buckets()["Buckets"]
    ]


def test_a_failed_up_names_the_resource_and_the_reason_and_the_next_one_goes_on(
    cloud: Cloud,
) -> None:
    cloud.stacks.failures["ExecutionRole"] = (
        "User: arn:aws:iam::123456789012:user/tester is not authorized to perform: iam:CreateRole"
        " on resource: *"
    )
    said = up()
    assert said.code == 4
    assert "IAM role (ExecutionRole) of the stack cloudtrain: User:" in said.err
    assert (
        "these credentials lack iam:CreateRole; then again: cloudtrain infra up --provider aws"
        in said.err
    )
    assert "failed    IAM role (ExecutionRole)" in said.err
    assert cloud.stacks.stack("cloudtrain").status == "ROLLBACK_COMPLETE"
    assert len(cloud.client("s3", direct=True).list_buckets()["Buckets"]) == 1, (
        "an attempt that failed leaves no bucket"
    )
    shown = document("infra", "show", "--provider", "aws")
    assert (shown["state"], [each["name"] for each in shown["resources"]]) == (
        "failed",
        ["ExecutionRole"],
    )
    assert "ROLLBACK_COMPLETE: IAM role (ExecutionRole): User:" in shown["reason"]
    assert up().code == 0
    assert document("infra", "show", "--provider", "aws")["state"] == "ready"


def test_the_name_that_a_failed_attempt_has_left_is_deleted_on_request(cloud: Cloud) -> None:
    cloud.stacks.failures["Bucket"] = "no"
    assert up().code == 4
    plan = document(*DOWN)["plan"]
    assert [(each["kind"], each["action"]) for each in plan["changes"]] == [("stack", "delete")]
    assert cloud.stacks.find("cloudtrain") is None


def test_the_key_that_an_earlier_stack_has_left_can_be_used_again(cloud: Cloud) -> None:
    up("--set", "kms_key=new")
    key = cloud.stacks.stack("cloudtrain").outputs["KmsKey"]
    said = call(*DOWN)
    assert "kept, and billed 1.00 USD a month and by what is stored: " in said.err
    notes = document("infra", "up", "--provider", "aws", "--dry-run")["plan"]["notes"]
    assert any(f"--set kms_key={key} uses it" in note for note in notes)
    assert document(*UP, "--set", f"kms_key={key}")["deployment"]["settings"]["aws.kms_key"] == key


def test_a_failed_change_is_undone_and_can_be_done_again(cloud: Cloud) -> None:
    up()
    cloud.stacks.failures["Vpc"] = (
        "The maximum number of VPCs has been reached. (Service: Ec2, Status Code: 400)"
    )
    said = up("--set", "network=new")
    assert said.code == 4
    assert "VPC (Vpc) of the stack cloudtrain: The maximum number" in said.err
    assert "Service Quotas" in said.err
    shown = document("infra", "show", "--provider", "aws")
    assert (shown["state"], shown["reason"]) == ("ready", "UPDATE_ROLLBACK_COMPLETE")
    assert up("--set", "network=new").code == 0


def test_a_client_that_is_interrupted_is_followed_by_one_that_goes_on_watching(
    cloud: Cloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:

        def interrupt(seconds: float) -> None:
            if (
                cloud.stacks.find("cloudtrain")
                and cloud.stacks.stack("cloudtrain").status == "CREATE_IN_PROGRESS"
            ):
                raise KeyboardInterrupt

        patched.setattr("cloudtrain.providers.aws.stack.time.sleep", interrupt)
        said = up()
    assert said.code == 130
    assert "the cloud goes on by itself" in said.err
    said = up()
    assert said.code == 0, said.err
    assert "CloudFormation is at work on it" in said.err
    assert document("infra", "show", "--provider", "aws")["state"] == "ready"


def test_a_policy_that_is_attached_to_somebody_is_told_and_down_goes_on_when_it_is_not(
    cloud: Cloud,
) -> None:
    up()
    iam = cloud.client("iam", direct=True)
    arn = cloud.stacks.stack("cloudtrain").outputs["SubmitterPolicy"]
    iam.create_user(UserName="ann")
    iam.attach_user_policy(UserName="ann", PolicyArn=arn)
    said = call(*DOWN, "--delete-data")
    assert said.code == 4
    assert f"aws iam list-entities-for-policy --policy-arn {arn}" in said.err
    assert len(cloud.client("s3", direct=True).list_buckets()["Buckets"]) == 2, (
        "no data goes before the stack is gone"
    )
    assert "then again: cloudtrain infra down" in said.err
    assert call(*UP).code == 4, "a stack that is half gone takes no change"
    iam.detach_user_policy(UserName="ann", PolicyArn=arn)
    assert call(*DOWN, "--delete-data").code == 0
    assert len(cloud.client("s3", direct=True).list_buckets()["Buckets"]) == 1


@pytest.mark.parametrize("words", [("--set", "budget=5"), ("--set", "alarm_email=a@b")])
def test_a_budget_without_a_reader_is_refused_before_anything_is_asked_for(
    cloud: Cloud, words: tuple[str, ...]
) -> None:
    said = up(*words)
    assert said.code == 2
    assert "budget and alarm_email go together" in said.err
    assert cloud.stacks.find("cloudtrain") is None


def test_several_deployments_stand_side_by_side(cloud: Cloud) -> None:
    up()
    assert up("--name", "lab").code == 0
    assert call(*DOWN, "--name", "lab").code == 0
    assert document("infra", "show", "--provider", "aws")["state"] == "ready"


def test_without_a_region_the_template_is_printed_and_everything_else_asks_for_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("CLOUDTRAIN_AWS_REGION", "AWS_DEFAULT_REGION"):
        monkeypatch.delenv(name)
    said = call("infra", "render", "--provider", "aws")
    assert said.out.startswith("# What an AWS account needs")
    said = call("infra", "show", "--provider", "aws")
    assert said.code == 2
    assert "aws.region is not set" in said.err


def test_what_up_has_made_is_enough_to_submit_and_to_follow_a_job_and_down_leaves_nothing(
    cloud: Cloud,
) -> None:
    """The policies are read back from the account, as they are there."""
    up()
    outputs = cloud.stacks.stack("cloudtrain").outputs
    iam = cloud.client("iam", direct=True)
    granted = iam.get_policy_version(PolicyArn=outputs["SubmitterPolicy"], VersionId="v1")[
        "PolicyVersion"
    ]["Document"]
    role = outputs["Role"].rpartition("/")[2]
    cloud.account.job_policy = statements(
        [iam.get_role_policy(RoleName=role, PolicyName="jobs")["PolicyDocument"]]
    )
    cloud.account.caller_policy = statements([granted])
    cloud.registry.images.put(outputs["Repository"].rpartition("/")[2], "1", "amd64")
    job = {"name": "first", "entrypoint": "train.py", "image": f"{outputs['Repository']}:1",
           "resources": {"instance": {"aws": "ml.m5.xlarge"}}}  # fmt: skip
    try:
        run = cloudtrain.submit(cloudtrain.plan(cloudtrain.load(job), "aws"))
        assert run.status().state == "pending"
        body = cloud.service.jobs[run.id].body
        stages = ("create", "image", "download", "checkpoints", "results", "logs")
        assert [check_stage(stage, body, cloud.account) for stage in stages] == [""] * len(stages)
    finally:
        cloud.account.caller_policy = cloud.account.job_policy = None
    assert call(*DOWN, "--delete-data").code == 0
    assert [each["Name"] for each in cloud.client("s3", direct=True).list_buckets()["Buckets"]] == [
        cloud.bucket
    ]
    assert (iam.list_roles()["Roles"], iam.list_policies(Scope="Local")["Policies"]) == ([], [])
