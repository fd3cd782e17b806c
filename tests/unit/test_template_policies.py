"""Rights by the templates of both clouds: exactly the listed actions on the resources."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloudtrain.providers.azure.declaration import DECLARATION
from tests.fakes.aws.policies import Attempt, Statement, actions, is_allowed, resources
from tests.fakes.azure.account import WORKSPACES
from tests.fakes.azure.permissions import KNOWN
from tests.fakes.azure.rights import BUILT_IN, SCIENTIST, role_of
from tests.support.aws_template import (
    ACCOUNT,
    EVERYTHING,
    JOB,
    REGION,
    SUBJECT,
    Permissions,
    job_policy,
    resolved,
    submitter_policy,
    template,
)
from tests.support.aws_template import DOCTOR as AWS_DOCTOR
from tests.support.aws_template import SUBMITTER as AWS_SUBMITTER
from tests.support.azure_template import (
    CASES,
    DOCUMENT,
    GROUP,
    LOOKING,
    PEOPLE,
    SUBMITTER,
    deployed,
)

WITHOUT_RESOURCES = {
    "ecr:GetAuthorizationToken",
    "sagemaker:Search",
    "cloudwatch:PutMetricData",
    *(action for action in JOB if action.startswith("ssmmessages:")),
    *(action for action in (*JOB, *AWS_DOCTOR) if action.startswith("ec2:Describe")),
    *(action for action in AWS_DOCTOR if action.startswith(("servicequotas:", "fsx:", "ssm:"))),
    *("batch:DescribeJobQueues", "batch:DescribeServiceJob", "batch:ListServiceJobs"),
    *("elasticfilesystem:DescribeMountTargets", "sagemaker:DescribeTrainingPlan"),
}
"""Actions that know no resources (Service Authorization Reference)."""
POLICIES = {
    "job": (job_policy, JOB),
    "submitter": (submitter_policy, {**AWS_SUBMITTER, **AWS_DOCTOR}),
}
EACH = pytest.mark.parametrize("who", POLICIES)
ROLE = f"arn:aws:iam::{ACCOUNT}:role/made-role"


def granted(permissions: Permissions, *parameters: str) -> set[str]:
    return {action for action, only_with in permissions.items() if only_with in ("", *parameters)}


@EACH
def test_the_policy_has_exactly_the_actions_of_the_list(who: str) -> None:
    policy, permissions = POLICIES[who]
    assert set(actions(policy())) == granted(permissions)
    assert set(actions(policy(KmsKey="new"))) == granted(permissions, "kms_key")
    assert set(actions(policy(Network="existing"))) == granted(permissions, "network")
    assert set(actions(policy(RemoveRuns="yes"))) == granted(permissions, "remove_runs")
    assert set(actions(policy(Queue="new"))) == granted(permissions, "queue")
    assert set(actions(policy(RemoteDebug="yes"))) == granted(permissions, "remote_debug")
    assert set(actions(policy(**EVERYTHING))) == granted(
        permissions, "kms_key", "network", "queue", "remote_debug", "remove_runs"
    )


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
            rf"arn:aws:batch:{account}:(job-queue/cloudtrain|service-job/\*)",
            rf"arn:aws:ecr:{REGION}:763104351884:repository/\*",
            rf"arn:aws:logs:{account}:log-group:/aws/sagemaker/TrainingJobs(:\*)?",
            rf"arn:aws:(secretsmanager|ssm):{account}:(secret:|parameter/)cloudtrain/\*",
            rf"arn:aws:kms:{account}:key/made-key",
            rf"arn:aws:ec2:{account}:(network-interface/\*|subnet/<Subnet[AB]>|security-group/<SecurityGroup.GroupId>)",
            rf"arn:aws:sagemaker:{account}:(training-job|hyper-parameter-tuning-job)/\*",
            rf"arn:aws:sagemaker:{account}:(training-plan|reserved-capacity)/\*",
            ROLE,
            rf"arn:aws:iam::{ACCOUNT}:(role/cloudtrain-GitHubRole-\*|user/(\*/)?\$\{{aws:username\}})",
        )
    )


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


def of_kind(case: str, kind: str) -> list[Mapping[str, Any]]:
    bodies = [one.body for one in deployed(case) if one.kind == kind]
    assert bodies, kind
    return bodies


def test_outputs_are_settings_of_cloudtrain_or_told_to_people() -> None:
    supplied = {"vault", "github_client_id"}
    assert set(DOCUMENT["outputs"]) - supplied <= set(DECLARATION.settings)
    assert {
        "subscription",
        "resource_group",
        "workspace",
        "location",
        "compute",
        "repository",
    } <= set(DOCUMENT["outputs"])


def test_nobody_can_enter_by_a_key_or_a_password() -> None:
    [storage] = of_kind("plain", "Microsoft.Storage/storageAccounts")
    assert storage["properties"]["allowSharedKeyAccess"] is False
    assert storage["properties"]["allowBlobPublicAccess"] is False
    assert storage["properties"]["minimumTlsVersion"] == "TLS1_2"
    vaults = of_kind("plain", "Microsoft.KeyVault/vaults")
    assert [vault["properties"]["enableRbacAuthorization"] for vault in vaults] == [True, True]
    assert [vault["properties"]["enablePurgeProtection"] for vault in vaults] == [True, True]
    [registry] = of_kind("plain", "Microsoft.ContainerRegistry/registries")
    assert registry["properties"]["adminUserEnabled"] is False
    [workspace] = of_kind("plain", "Microsoft.MachineLearningServices/workspaces")
    assert workspace["properties"]["systemDatastoresAuthMode"] == "Identity"


def test_private_network_closes_every_resource_to_the_public() -> None:
    access = {
        case: {
            one.body["properties"]["publicNetworkAccess"]
            for one in deployed(case)
            if "publicNetworkAccess" in one.body.get("properties", {})
        }
        for case in ("plain", "everything")
    }
    assert access == {"plain": {"Enabled"}, "everything": {"Disabled"}}


@pytest.mark.parametrize("case", ["plain", "everything"])
def test_clusters_scale_to_zero_and_take_logins_by_entra_id_alone(case: str) -> None:
    for body in of_kind(case, "Microsoft.MachineLearningServices/workspaces/computes"):
        assert body["properties"]["disableLocalAuth"] is True
        assert body["properties"]["properties"]["scaleSettings"]["minNodeCount"] == 0


def own_roles(case: str) -> dict[str, dict[str, Any]]:
    """The roles that the template defines, by the last part of their ids."""
    return {
        one.id.rpartition("/")[2]: one.body["properties"]
        for one in deployed(case)
        if one.kind == "Microsoft.Authorization/roleDefinitions"
    }


def grants(case: str) -> set[tuple[str, str, str]]:
    """Return (principal, role, type of resource) of every assignment."""
    assigned = set()
    for one in deployed(case):
        if one.kind == "Microsoft.Authorization/roleAssignments":
            scope = one.id.rpartition("/providers/Microsoft.Authorization")[0]
            id_ = one.body["properties"]["roleDefinitionId"].rpartition("/")[2]
            role = (
                own_roles(case)[id_]["roleName"].partition(" of ")[0]
                if id_ in own_roles(case)
                else BUILT_IN[id_].name
            )
            assigned.add((one.body["properties"]["principalId"], role, scope.split("/")[-2]))
    return assigned


@pytest.mark.parametrize("who", [PEOPLE[0]["id"], "cloudtrain-github"])
def test_who_submits_creates_jobs_moves_files_and_pushes_images_and_no_more(who: str) -> None:
    data = {("Storage Blob Data Contributor", "storageAccounts"), ("AcrPush", "registries")}
    looked_at = ("workspaces", "storageAccounts", "registries", "vaults")
    expected = {("cloudtrain submitter", scope) for scope in looked_at}
    assert {(role, on) for whom, role, on in grants("everything") if whom == who} == data | expected
    built_in = {("AzureML Data Scientist", "workspaces")}
    assert {
        (role, on) for whom, role, on in grants("built-in role") if whom == who
    } == data | built_in


def test_role_of_submitters_has_exactly_the_listed_actions_in_this_group() -> None:
    [permissions_of_role] = own_roles("everything").values()
    [permissions] = permissions_of_role["permissions"]
    assert permissions == {"actions": sorted(SUBMITTER)}
    assert not [
        action for action in permissions["actions"] if "*" in action or action.endswith("/delete")
    ]
    assert set(permissions["actions"]) <= KNOWN, "else Azure refuses the role"
    assert permissions_of_role["assignableScopes"] == [GROUP["id"]]
    assert permissions_of_role["roleName"].startswith("cloudtrain submitter of cloudtrain ")
    assert own_roles("built-in role") == {}


def test_role_of_submitters_adds_only_reading_roles_to_data_scientist() -> None:
    [(_, submitter)] = (
        (key, role_of("", role["permissions"])) for key, role in own_roles("plain").items()
    )
    more = {
        action
        for action in submitter.actions
        if not BUILT_IN[SCIENTIST].grants(action, on_data=False)
    }
    assert more == {*LOOKING, f"{WORKSPACES}/read"}


@pytest.mark.parametrize("case", CASES)
def test_no_role_is_owner_or_contributor_and_none_reaches_beyond_one_resource(case: str) -> None:
    assert all("Contributor" not in role or "Data" in role for _, role, _ in grants(case))
    for one in deployed(case):
        if one.kind == "Microsoft.Authorization/roleAssignments":
            scope = one.id.rpartition("/providers/Microsoft.Authorization")[0]
            assert scope.startswith(f"{GROUP['id']}/providers/"), f"{one.id} is for the whole group"
            if one.body["properties"]["principalId"] not in {person["id"] for person in PEOPLE}:
                assert one.body["properties"]["principalType"] == "ServicePrincipal", (
                    "a new identity is not known everywhere"
                )


def test_only_the_workflows_of_the_given_subject_act_as_github() -> None:
    [credential] = of_kind(
        "everything",
        "Microsoft.ManagedIdentity/userAssignedIdentities/federatedIdentityCredentials",
    )
    assert credential["properties"] == {
        "issuer": "https://token.actions.githubusercontent.com",
        "subject": "repo:me/mine:ref:refs/heads/main",
        "audiences": ["api://AzureADTokenExchange"],
    }
    assert not any("github" in one.id for one in deployed("plain"))


@pytest.mark.parametrize(
    ("parameters", "allowed", "denied"),
    [
        (
            {"MaxRuntimeSeconds": "3600"},
            {"sagemaker:MaxRuntimeInSeconds": "3600"},
            [{"sagemaker:MaxRuntimeInSeconds": "3601"}, {}],
        ),
        (
            {"InstanceTypes": "ml.g5.*,ml.m5.large"},
            {"sagemaker:InstanceTypes": "ml.g5.xlarge ml.m5.large"},
            [{"sagemaker:InstanceTypes": "ml.g5.xlarge ml.p5.48xlarge"}],
        ),
        (
            {"RequiredTags": "project,owner"},
            {"aws:TagKeys": "owner cloudtrain-run project"},
            [{"aws:TagKeys": "project cloudtrain-run"}, {"aws:TagKeys": ""}],
        ),
    ],
)
@pytest.mark.parametrize("action", ["CreateTrainingJob", "CreateHyperParameterTuningJob"])
def test_a_limit_of_the_account_denies_what_is_beyond_it(
    parameters: dict[str, str], allowed: dict[str, str], denied: list[dict[str, str]], action: str
) -> None:
    kind = "training-job" if action == "CreateTrainingJob" else "hyper-parameter-tuning-job"
    resource = f"arn:aws:sagemaker:{REGION}:{ACCOUNT}:{kind}/one"
    tag = {"aws:RequestTag/cloudtrain-run": "one"}

    def is_started(context: dict[str, str], **limits: str) -> bool:
        attempt = Attempt(
            action=f"sagemaker:{action}", resource=resource, context={**tag, **context}
        )
        return is_allowed(attempt, submitter_policy(**limits))

    assert is_started(allowed, **parameters)
    for context in denied:
        assert is_started(context)
        assert not is_started(context, **parameters)
