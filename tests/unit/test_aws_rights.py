"""Rights of jobs, people and GitHub by the template: exactly the listed actions on this stack."""

from __future__ import annotations

import json
import re

import botocore.session
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from tests.fakes.aws.policies import Attempt, Statement, actions, is_allowed, resources
from tests.support.aws_permissions import DOCTOR, JOB, SUBMITTER, Permissions
from tests.support.aws_template import (
    ACCOUNT,
    EVERYTHING,
    REGION,
    SUBJECT,
    job_policy,
    resolved,
    submitter_policy,
    template,
)

WITHOUT_RESOURCES = {
    "ecr:GetAuthorizationToken",
    "sagemaker:Search",
    "cloudwatch:PutMetricData",
    *(action for action in JOB if action.startswith("ssmmessages:")),
    *(action for action in (*JOB, *DOCTOR) if action.startswith("ec2:Describe")),
    *(action for action in DOCTOR if action.startswith("servicequotas:")),
}
"""Actions that know no resources (Service Authorization Reference)."""
POLICIES = {"job": (job_policy, JOB), "submitter": (submitter_policy, {**SUBMITTER, **DOCTOR})}
EACH = pytest.mark.parametrize("who", POLICIES)
ROLE = f"arn:aws:iam::{ACCOUNT}:role/made-role"
BUCKETS = st.from_regex(r"[a-z0-9][a-z0-9.-]{1,40}[a-z0-9]", fullmatch=True)
S3_ACTIONS = sorted(
    f"s3:{name}" for name in botocore.session.get_session().get_service_model("s3").operation_names
)


def granted(permissions: Permissions, *parameters: str) -> set[str]:
    return {action for action, only_with in permissions.items() if only_with in ("", *parameters)}


@EACH
def test_the_policy_has_exactly_the_actions_of_the_list(who: str) -> None:
    policy, permissions = POLICIES[who]
    assert set(actions(policy())) == granted(permissions)
    assert set(actions(policy(KmsKey="new"))) == granted(permissions, "kms_key")
    assert set(actions(policy(Network="existing"))) == granted(permissions, "network")
    assert set(actions(policy(RemoteDebug="yes"))) == granted(permissions, "remote_debug")
    assert set(actions(policy(**EVERYTHING))) == granted(
        permissions, "kms_key", "network", "remote_debug"
    )


def test_what_doctor_looks_at_is_left_out_on_request_and_nothing_else_is() -> None:
    assert set(actions(submitter_policy(**EVERYTHING, Doctor="no"))) == granted(
        SUBMITTER, "kms_key"
    )
    looks = [
        statement
        for statement in submitter_policy(**EVERYTHING)
        if statement["Sid"].startswith("LookAt")
    ]
    assert set(actions(looks)) - {"ecr:BatchGetImage", "ecr:GetDownloadUrlForLayer"} == set(
        DOCTOR
    ), "in statements of their own"


@EACH
def test_no_action_is_a_pattern_and_no_resource_is_wider_than_the_stack(who: str) -> None:
    for statement in POLICIES[who][0](**EVERYTHING):
        assert statement["Effect"] == "Allow"
        assert not [action for action in actions([statement]) if "*" in action or "?" in action]
        for resource in resources(statement):
            if resource == "*":
                assert set(actions([statement])) <= WITHOUT_RESOURCES, statement["Sid"]
            else:
                assert is_narrow(resource), resource


def is_narrow(arn: str) -> bool:
    """Return whether an ARN names the stack's resources, the jobs and logs of this account, or
    AWS's own containers.
    """
    account = rf"{REGION}:{ACCOUNT}"
    return any(
        re.fullmatch(pattern, arn)
        for pattern in (
            r"arn:aws:s3:::(made-bucket|data)(/.*)?",
            rf"arn:aws:ecr:{account}:repository/made-repository",
            rf"arn:aws:ecr:{REGION}:763104351884:repository/\*",
            rf"arn:aws:logs:{account}:log-group:/aws/sagemaker/TrainingJobs(:\*)?",
            rf"arn:aws:(secretsmanager|ssm):{account}:(secret:|parameter/)cloudtrain/\*",
            rf"arn:aws:kms:{account}:key/made-key",
            rf"arn:aws:ec2:{account}:(network-interface/\*|subnet/<Subnet[AB]>|security-group/<SecurityGroup.GroupId>)",
            rf"arn:aws:sagemaker:{account}:(training-job|hyper-parameter-tuning-job)/\*",
            ROLE,
            rf"arn:aws:iam::{ACCOUNT}:(role/cloudtrain-GitHubRole-\*|user/(\*/)?\$\{{aws:username\}})",
        )
    )


@EACH
@given(
    bucket=BUCKETS,
    key=st.text(max_size=20),
    action=st.sampled_from(S3_ACTIONS),
)
def test_nobody_reads_or_writes_a_bucket_of_somebody_else(
    who: str, bucket: str, key: str, action: str
) -> None:
    assume(bucket not in ("made-bucket", "data"))
    for arn in (f"arn:aws:s3:::{bucket}", f"arn:aws:s3:::{bucket}/{key}"):
        assert not is_allowed(Attempt(action=action, resource=arn), POLICIES[who][0](**EVERYTHING))


@given(
    account=st.sampled_from([ACCOUNT, "999999999999"]),
    role=st.text(st.characters(codec="ascii", categories=["L", "N"]), min_size=1),
    service=st.sampled_from(
        ["sagemaker.amazonaws.com", "ec2.amazonaws.com", "lambda.amazonaws.com"]
    ),
)
def test_no_other_role_is_passed_and_this_one_to_sagemaker_alone(
    account: str, role: str, service: str
) -> None:
    policy = submitter_policy(**EVERYTHING)
    context = {"iam:PassedToService": service}
    other_role = Attempt(
        action="iam:PassRole", resource=f"arn:aws:iam::{account}:role/{role}", context=context
    )
    assert not is_allowed(other_role, policy)
    own_role = Attempt(action="iam:PassRole", resource=ROLE, context=context)
    assert is_allowed(own_role, policy) == (service == "sagemaker.amazonaws.com")
    assert not is_allowed(Attempt(action="iam:PassRole", resource=ROLE), policy)


def trusts(statement: Statement, context: dict[str, str]) -> bool:
    """Return whether a trust policy admits a caller with these claims."""
    policy = {key: value for key, value in statement.items() if key != "Principal"} | {
        "Resource": "*"
    }
    return is_allowed(Attempt(action=statement["Action"], context=context), [policy])


@given(
    account=st.from_regex(r"\d{12}", fullmatch=True), region=st.sampled_from([REGION, "eu-west-1"])
)
def test_sagemaker_takes_the_role_for_this_account_and_region_alone(
    account: str, region: str
) -> None:
    [statement] = resolved().properties("ExecutionRole")["AssumeRolePolicyDocument"]["Statement"]
    assert statement["Principal"] == {"Service": "sagemaker.amazonaws.com"}
    source = f"arn:aws:sagemaker:{region}:{account}:training-job/a"
    context = {"aws:SourceAccount": account, "aws:SourceArn": source}
    assert trusts(statement, context) == (account == ACCOUNT and region == REGION)
    assert not trusts(statement, {"aws:SourceAccount": ACCOUNT})


@given(
    subject=st.one_of(
        st.sampled_from([SUBJECT, SUBJECT + "x", "repo:me/mine:pull_request", "*"]), st.text()
    )
)
def test_github_takes_its_role_with_the_whole_subject_alone(subject: str) -> None:
    [statement] = resolved(**EVERYTHING).properties("GitHubRole")["AssumeRolePolicyDocument"][
        "Statement"
    ]
    issuer = "token.actions.githubusercontent.com"
    assert trusts(statement, {f"{issuer}:aud": "sts.amazonaws.com", f"{issuer}:sub": subject}) == (
        subject == SUBJECT
    )
    assert not trusts(statement, {f"{issuer}:aud": "sts.other.com", f"{issuer}:sub": subject})
    assert resolved(**EVERYTHING).properties("GitHubRole")["ManagedPolicyArns"] == [
        "<SubmitterPolicy>"
    ]


@pytest.mark.parametrize(
    "subject", ["repo:me/*:ref:refs/heads/main", "repo:me/mine:*", "me/mine", "*"]
)
def test_a_subject_with_a_wildcard_is_no_subject(subject: str) -> None:
    pattern = template()["Parameters"]["GitHubSubject"]["AllowedPattern"]
    assert re.fullmatch(pattern, subject) is None
    assert re.fullmatch(pattern, SUBJECT)
    assert re.fullmatch(pattern, "repo:me@1/mine@2:environment:prod"), (
        "with ids, as newer repositories have them"
    )


def test_policies_fit_into_the_quotas_of_iam() -> None:
    """6,144 characters of a managed policy, 10,240 of a role's, white space not counted (IAM
    quotas).
    """
    for name, key, limit in (
        ("SubmitterPolicy", "PolicyDocument", 6144),
        ("ExecutionRole", "Policies", 10240),
    ):
        assert (
            len(json.dumps(resolved(**EVERYTHING).properties(name)[key], separators=(",", ":")))
            < limit * 0.9
        )
