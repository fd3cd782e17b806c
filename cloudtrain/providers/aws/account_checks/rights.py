"""What the submitting identity and the job's role are allowed, by IAM's own simulator
(SimulatePrincipalPolicy).

The simulator looks at the policies of the identity alone: what a bucket's own policy grants besides
is not seen.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from cloudtrain.checkup import Check, Question
from cloudtrain.errors import CloudError
from cloudtrain.planning.reference import ECR, parse_address
from cloudtrain.providers.aws.account_checks import Account, Caller
from cloudtrain.providers.aws.account_checks.identity import SERVICE
from cloudtrain.providers.aws.section import AwsSection
from cloudtrain.providers.shared.paths import PREFIX
from cloudtrain.providers.shared.tags import TAG_PREFIX

_ROLE_AT = ("aws", "role")
_CREATED = {
    "sagemaker:TaggingAction": "CreateTrainingJob",
    f"aws:RequestTag/{TAG_PREFIX}run": "any",
}
"""Condition keys of CreateTrainingJob and of the AddTags that it implies."""
_TAGGED = {f"aws:ResourceTag/{TAG_PREFIX}run": "any"}
"""Condition keys of calls about a job that exists."""
_CHANNELS = tuple(
    f"ssmmessages:{verb}{kind}Channel"
    for verb in ("Create", "Open")
    for kind in ("Control", "Data")
)


@dataclass(frozen=True, slots=True)
class Need:
    """Actions that are needed on one resource, with the condition keys that their requests have."""

    resource: str
    actions: tuple[str, ...]
    context: Mapping[str, str] = field(default_factory=dict)


def rights_checks(account: Account, caller: Caller) -> Iterator[Check]:
    """PassRole, what a submit does, what the job does."""
    asked = Question(
        "PassRole", f"may these credentials give a job the role {account.role_name}", _ROLE_AT
    )
    role = account.config.role
    yield _check(
        account,
        asked,
        caller.arn,
        [Need(role, ("iam:PassRole",), {"iam:PassedToService": SERVICE})],
    )
    asked = Question(
        "submitting", "may these credentials store sources, and start, follow and stop jobs"
    )
    yield _check(account, asked, caller.arn, needs_of_submit(account))
    asked = Question(
        "role's rights",
        "may the job read and write the bucket, write logs and pull its image",
        _ROLE_AT,
    )
    yield _check(account, asked, role, needs_of_job(account))


def _check(account: Account, asked: Question, principal: str, needs: Sequence[Need]) -> Check:
    def ask() -> Check:
        if principal.endswith(":root"):
            return asked.ok("these are the account's own, which may do everything")
        identity = _identity(account, principal)
        if not identity:
            return asked.not_applicable(f"IAM simulates no policies of {principal}")
        for need in needs:
            denied = _denied(account, identity, need)
            if denied:
                fix = (
                    f"allow {', '.join(denied)} on {need.resource}, in a policy of"
                    f" {identity.rpartition(':')[2]}"
                )
                return asked.wrong(f"{', '.join(denied)} on {need.resource} is not allowed", fix)
        return asked.ok("yes, by IAM's simulator")

    return asked.answered_by(ask)


def needs_of_submit(account: Account) -> list[Need]:
    """What a submit calls, and what follows a run."""
    config = account.config
    jobs = f"arn:{account.partition}:sagemaker:{config.region}:{account.number}:training-job/*"
    log = f"arn:{account.partition}:logs:{config.region}:{account.number}:log-group:/aws/sagemaker/TrainingJobs"
    return [
        Need(jobs, ("sagemaker:CreateTrainingJob", "sagemaker:AddTags"), _CREATED),
        Need(jobs, ("sagemaker:DescribeTrainingJob", "sagemaker:StopTrainingJob"), _TAGGED),
        Need(_objects(account, "sources/"), ("s3:PutObject",)),
        Need(_objects(account, "runs/*/job/"), ("s3:PutObject",)),
        Need(_objects(account), ("s3:GetObject",)),
        Need(_bucket(account), ("s3:ListBucket",)),
        Need(f"{log}:log-stream:*", ("logs:GetLogEvents",)),
    ]


def needs_of_job(account: Account) -> list[Need]:
    """What SageMaker and the launcher do in the role's name ("SageMaker roles", developer guide)."""
    config = account.config
    log = f"arn:{account.partition}:logs:{config.region}:{account.number}:log-group:/aws/sagemaker/TrainingJobs"
    needs = [
        Need(_objects(account), ("s3:GetObject",)),
        Need(_objects(account, "runs/*/checkpoints/"), ("s3:PutObject", "s3:DeleteObject")),
        Need(_objects(account, "runs/*/output/"), ("s3:PutObject",)),
        Need(_bucket(account), ("s3:ListBucket",)),
        Need(f"{log}:log-stream:*", ("logs:CreateLogStream", "logs:PutLogEvents")),
        Need("*", ("ecr:GetAuthorizationToken",)),
    ]
    image = account.target.image_address
    if found := ECR.fullmatch(image):
        repository = parse_address(image).repository
        place = f"arn:{account.partition}:ecr:{found[2]}:{found[1]}:repository/{repository}"
        needs.append(Need(place, ("ecr:BatchGetImage", "ecr:GetDownloadUrlForLayer")))
    if account.spec.section(AwsSection).remote_debug:
        needs.append(Need("*", _CHANNELS))
    for places in account.spec.secrets.values():
        store, _, name = places.get(account.target.provider, "").partition(":")
        needs += _of_secret(account, store, name.partition("#")[0])
    return needs


def _of_secret(account: Account, store: str, name: str) -> list[Need]:
    where = f"{account.config.region}:{account.number}"
    if name.startswith("arn:"):
        resource = name
    elif store == "secretsmanager":
        # as IAM's own pages write it
        resource = f"arn:{account.partition}:secretsmanager:{where}:secret:{name}-??????"
    else:
        resource = f"arn:{account.partition}:ssm:{where}:parameter/{name.removeprefix('/')}"
    actions = {"secretsmanager": "secretsmanager:GetSecretValue", "ssm": "ssm:GetParameter"}
    return [Need(resource, (actions[store],))] if store in actions else []


def _bucket(account: Account) -> str:
    return f"arn:{account.partition}:s3:::{account.config.bucket}"


def _objects(account: Account, below: str = "") -> str:
    return f"{_bucket(account)}/{PREFIX}/{below}*"


def _identity(account: Account, principal: str) -> str:
    """The ARN that the simulator takes: of a session it takes the role's; empty for an identity of
    another kind.
    """
    session = re.fullmatch(r"arn:([\w-]+):sts::(\d+):assumed-role/([^/]+)/.+", principal)
    if session is None:
        return principal if re.search(r":(user|role|group)/", principal) else ""
    try:  # the role may have a path, which the session's ARN leaves out
        return str(account.cloud.call("iam", "get_role", RoleName=session[3])["Role"]["Arn"])
    except CloudError as error:
        if not error.is_denied:
            raise
        return f"arn:{session[1]}:iam::{session[2]}:role/{session[3]}"


def _denied(account: Account, identity: str, need: Need) -> list[str]:
    """Return the actions that the identity's policies do not allow."""
    entries = [
        {"ContextKeyName": key, "ContextKeyValues": [value], "ContextKeyType": "string"}
        for key, value in need.context.items()
    ]
    pages = account.cloud.pages(
        "iam",
        "simulate_principal_policy",
        PolicySourceArn=identity,
        ActionNames=list(need.actions),
        ResourceArns=[need.resource],
        ContextEntries=entries,
    )
    results = [result for page in pages for result in page["EvaluationResults"]]
    return [result["EvalActionName"] for result in results if result["EvalDecision"] != "allowed"]
