"""The imitation of CloudFormation refuses what the service refuses, in its words; each case names
the page.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from botocore.exceptions import ClientError

from tests.fakes.aws.cloud import Cloud

ROLE = {
    "Type": "AWS::IAM::Role",
    "Properties": {"AssumeRolePolicyDocument": {"Version": "2012-10-17", "Statement": []}},
}
GROUP = {"Type": "AWS::Logs::LogGroup", "Properties": {"LogGroupName": "one", "RetentionInDays": 7}}
BUCKET = {
    "Type": "AWS::S3::Bucket",
    "Properties": {
        "BucketName": "a-bucket",
        "VersioningConfiguration": {"Status": "Enabled"},
        "PublicAccessBlockConfiguration": {"BlockPublicAcls": True},
    },
}


@pytest.fixture
def stacks(account: Cloud) -> Iterator[Any]:
    """A client of an account without stacks."""
    account.empty()
    yield account.client("cloudformation")
    account.empty()


def template(**resources: Any) -> str:
    return json.dumps({"Resources": resources})


def change_set(stacks: Any, body: str, kind: str = "CREATE", **more: Any) -> dict[str, Any]:
    """A change set that is ready, or has failed."""
    made = stacks.create_change_set(
        StackName="one", ChangeSetName="a", ChangeSetType=kind, TemplateBody=body, **more
    )
    stacks.describe_change_set(ChangeSetName=made["Id"])
    found: dict[str, Any] = stacks.describe_change_set(ChangeSetName=made["Id"])
    return found


def finished(stacks: Any) -> str:
    """The status when nothing moves any more."""
    status = "IN_PROGRESS"
    while status.endswith("IN_PROGRESS"):
        status = stacks.describe_stacks(StackName="one")["Stacks"][0]["StackStatus"]
    return str(status)


def made(stacks: Any, body: str, kind: str = "CREATE", **more: Any) -> str:
    stacks.execute_change_set(ChangeSetName=change_set(stacks, body, kind, **more)["ChangeSetId"])
    return finished(stacks)


REFUSALS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "roles without a word (CreateChangeSet, Capabilities)": (
        "Requires capabilities : .CAPABILITY_IAM.",
        template(R=ROLE),
        {},
    ),
    "named roles without another (CreateChangeSet, Capabilities)": (
        "CAPABILITY_NAMED_IAM",
        template(R={**ROLE, "Properties": {**ROLE["Properties"], "RoleName": "mine"}}),  # type: ignore[dict-item]
        {"Capabilities": ["CAPABILITY_IAM"]},
    ),
    "a parameter that is not declared (Parameters)": (
        "do not exist in the template",
        template(G=GROUP),
        {"Parameters": [{"ParameterKey": "No", "ParameterValue": "1"}]},
    ),
    "a parameter without a value (Parameters)": (
        "must have values",
        json.dumps({"Parameters": {"P": {"Type": "String"}}, "Resources": {"G": GROUP}}),
        {},
    ),
    "a value that does not fit (Parameters, AllowedPattern)": (
        "must match pattern",
        json.dumps(
            {
                "Parameters": {"P": {"Type": "String", "AllowedPattern": "a+", "Default": "b"}},
                "Resources": {"G": GROUP},
            }
        ),
        {},
    ),
    "a template that is too long (quotas)": (
        "less than or equal to 51200",
        template(G=GROUP) + " " * 51_200,
        {},
    ),
    "no resources (template anatomy)": (
        "At least one Resources member",
        "Description: nothing\n",
        {},
    ),
    "an alias of YAML (template formats)": (
        "aliases",
        "Resources: {A: &a {Type: AWS::EC2::VPC}, B: *a}",
        {},
    ),
    "a name that nothing has (Ref)": (
        "Unresolved resource dependencies",
        template(G={"Type": "AWS::EC2::Subnet", "Properties": {"VpcId": {"Ref": "Nothing"}}}),
        {},
    ),
    "a circle (template troubleshooting)": (
        "Circular dependency",
        template(
            A={"Type": "AWS::EC2::VPC", "Properties": {"X": {"Ref": "B"}}},
            B={"Type": "AWS::EC2::VPC", "Properties": {"X": {"Ref": "A"}}},
        ),
        {},
    ),
    "a change of what does not exist (CreateChangeSet)": (
        "does not exist",
        template(G=GROUP),
        {"kind": "UPDATE"},
    ),
}


@pytest.mark.parametrize("case", REFUSALS)
def test_a_change_set_is_refused(stacks: Any, case: str) -> None:
    message, body, more = REFUSALS[case]
    with pytest.raises(ClientError, match=message):
        change_set(stacks, body, **more)


def test_a_change_set_without_changes_fails_and_cannot_be_executed(stacks: Any) -> None:
    assert made(stacks, template(G=GROUP)) == "CREATE_COMPLETE"
    found = change_set(stacks, template(G=GROUP), "UPDATE")
    assert (found["Status"], found["ExecutionStatus"]) == ("FAILED", "UNAVAILABLE")
    assert "didn't contain changes" in found["StatusReason"]
    with pytest.raises(ClientError, match="InvalidChangeSetStatus"):
        stacks.execute_change_set(ChangeSetName=found["ChangeSetId"])


def test_a_stack_that_exists_is_not_created_again_and_one_that_was_rolled_back_not_changed(
    stacks: Any, account: Cloud
) -> None:
    account.stacks.failures["G"] = "because"
    assert made(stacks, template(G=GROUP)) == "ROLLBACK_COMPLETE"
    for kind, message in (
        ("CREATE", "already exists"),
        ("UPDATE", "ROLLBACK_COMPLETE state and can not be updated"),
    ):
        with pytest.raises(ClientError, match=message):
            change_set(stacks, template(G=GROUP), kind)


def test_a_log_group_whose_name_is_taken_fails_the_stack(stacks: Any, account: Cloud) -> None:
    account.client("logs", direct=True).create_log_group(logGroupName="one")
    assert made(stacks, template(G=GROUP)) == "ROLLBACK_COMPLETE"
    [failed] = [
        each
        for each in stacks.describe_stack_events(StackName="one")["StackEvents"]
        if each["ResourceStatus"] == "CREATE_FAILED"
    ]
    assert "already exist" in failed["ResourceStatusReason"]


def test_a_bucket_with_objects_in_it_is_not_deleted(stacks: Any, account: Cloud) -> None:
    assert made(stacks, template(B=BUCKET)) == "CREATE_COMPLETE"
    account.client("s3", direct=True).put_object(Bucket="a-bucket", Key="k", Body=b"")
    stacks.delete_stack(StackName="one")
    assert finished(stacks) == "DELETE_FAILED"


@pytest.mark.parametrize("policy", ["Retain", "RetainExceptOnCreate"])
def test_what_is_to_be_kept_is_kept_when_its_stack_goes(
    stacks: Any, account: Cloud, policy: str
) -> None:
    assert made(stacks, template(B={**BUCKET, "DeletionPolicy": policy})) == "CREATE_COMPLETE"
    arn = stacks.describe_stacks(StackName="one")["Stacks"][0]["StackId"]
    stacks.delete_stack(StackName="one")
    while stacks.describe_stacks(StackName=arn)["Stacks"][0]["StackStatus"] != "DELETE_COMPLETE":
        pass
    [left] = stacks.list_stack_resources(StackName=arn)["StackResourceSummaries"]
    assert left["ResourceStatus"] == "DELETE_SKIPPED"
    assert account.client("s3", direct=True).head_bucket(Bucket="a-bucket")
    with pytest.raises(ClientError, match="Stack with id one does not exist"):
        stacks.describe_stacks(StackName="one")


@pytest.mark.parametrize(("policy", "is_left"), [("Retain", True), ("RetainExceptOnCreate", False)])
def test_what_an_attempt_that_fails_has_made_goes_unless_it_is_to_be_kept_in_any_case(
    stacks: Any, account: Cloud, policy: str, is_left: bool
) -> None:
    """User guide, DeletionPolicy attribute: why the template of infra/aws has RetainExceptOnCreate."""
    account.stacks.failures["G"] = "because"
    body = template(B={**BUCKET, "DeletionPolicy": policy}, G=GROUP)
    assert made(stacks, body) == "ROLLBACK_COMPLETE"
    found = [each["Name"] for each in account.client("s3", direct=True).list_buckets()["Buckets"]]
    assert ("a-bucket" in found) == is_left
