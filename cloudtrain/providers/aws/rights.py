"""Checks of credentials and clock, and of the rights of user and role in an AWS account."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from cloudtrain.checkup import Check, Question
from cloudtrain.errors import CloudError
from cloudtrain.planning.launch import TAG_PREFIX
from cloudtrain.planning.reference import ECR, parse_address
from cloudtrain.providers.aws.policies import SERVICE, distrust, effects
from cloudtrain.providers.aws.request import input_uri, uri_parts
from cloudtrain.providers.aws.section import AwsSection
from cloudtrain.providers.shared.account import clock_check
from cloudtrain.providers.shared.paths import PREFIX

if TYPE_CHECKING:
    from cloudtrain.planning.target import Target
    from cloudtrain.providers.aws.client import AwsClient
    from cloudtrain.providers.aws.config import AwsConfig
    from cloudtrain.spec.model import JobSpec

_CREDENTIALS = Question("credentials", "whose are they")
_ROLE_PATH = ("aws", "role")

_CREATED = {
    "sagemaker:TaggingAction": "CreateTrainingJob",
    f"aws:RequestTag/{TAG_PREFIX}run": "any",
}
"""Condition keys of CreateTrainingJob and of the AddTags that it implies."""

_TAGGED = {f"aws:ResourceTag/{TAG_PREFIX}run": "any"}
"""Condition keys of calls about a job that exists."""

_KEY_ACTIONS = ("kms:Decrypt", "kms:Encrypt", "kms:GenerateDataKey")
"""For results and volumes: OutputDataConfig in the API reference, and S3's multipart uploads."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Account:
    """Account to check, and the job to check it for."""

    cloud: AwsClient
    config: AwsConfig
    target: Target
    spec: JobSpec

    @property
    def nodes(self) -> int:
        """Number of machines of the job."""
        return self.spec.resources.nodes

    @property
    def demand(self) -> str:
        """Number of machines at once: `the job has 2`, `4 trials at once have 8`."""
        if self.spec.machines == self.nodes:
            return f"the job has {self.nodes}"
        return f"{self.spec.machines // self.nodes} trials at once have {self.spec.machines}"

    @property
    def role_name(self) -> str:
        """Name of the execution role, without its path."""
        return self.config.role.rpartition("/")[2]

    @property
    def partition(self) -> str:
        """Partition in the role's ARN: `aws`, `aws-cn`."""
        return self.config.role.split(":")[1]

    @property
    def number(self) -> str:
        """Number of the role's account."""
        return self.config.role.split(":")[4]

    @property
    def principals(self) -> tuple[str, str, str]:
        """The role, and two names of its account, in policies on resources."""
        root = f"arn:{self.partition}:iam::{self.number}:root"
        return self.config.role, root, self.number


@dataclass(frozen=True, kw_only=True, slots=True)
class Caller:
    """Owner of the credentials."""

    arn: str
    """ARN: `arn:aws:iam::123456789012:user/alice`, or an assumed role's session."""
    account: str


def caller_checks(cloud: AwsClient) -> Iterator[Check | Caller]:
    """Yield the checks of credentials and clock, and then the caller, if there is one."""
    try:
        answer = cloud.call("sts", "get_caller_identity")
    except CloudError as error:
        off = clock_check(_date(getattr(error.__cause__, "response", {})), time.time())
        if off.is_wrong:
            yield off
        else:
            yield _CREDENTIALS.failed(error)
        return

    caller = Caller(arn=answer["Arn"], account=answer["Account"])
    yield _CREDENTIALS.found(caller.arn)
    yield clock_check(_date(answer), time.time())
    yield caller


def account_check(account: Account, caller: Caller) -> Check:
    """Check that the role is in the same account, as SageMaker requires."""
    question = Question(
        "account",
        f"are these credentials of the role's account, {account.number}",
        _ROLE_PATH,
    )
    if caller.account == account.number:
        return question.found("they are")

    fix = "credentials of that account (AWS_PROFILE, --profile), or a role of this one in aws.role"
    return question.wrong(f"they are of {caller.account}", fix)


def role_check(account: Account) -> Check:
    """Check that the role exists and lets SageMaker assume it for jobs here."""
    question = Question(
        "execution role",
        f"is {account.role_name} there, and may SageMaker assume it",
        _ROLE_PATH,
    )

    def ask() -> Check:
        try:
            role = account.cloud.call("iam", "get_role", RoleName=account.role_name)["Role"]
        except CloudError as error:
            if error.code != "NoSuchEntity":
                raise
            return question.wrong(
                "there is no such role",
                "name yours in aws.role; the template of `cloudtrain infra template --provider aws`"
                " makes one",
            )

        if role["Arn"] != account.config.role:
            return question.wrong(
                f"its ARN is {role['Arn']}, not {account.config.role}", f"aws.role: {role['Arn']}"
            )

        job = _arn_of_jobs(account)
        why = distrust(role.get("AssumeRolePolicyDocument") or {}, account.number, job)
        if why:
            fix = (
                f"a trust policy that allows {SERVICE}, without other conditions than"
                f" aws:SourceAccount {account.number}: aws iam update-assume-role-policy"
                f" --role-name {account.role_name}"
            )
            return question.wrong(why, fix)

        return question.found("it is, and trusts SageMaker")

    return question.answered_by(ask)


def _date(answer: Mapping[str, Any]) -> str:
    headers = answer.get("ResponseMetadata", {}).get("HTTPHeaders", {})
    return str(headers.get("date", ""))


@dataclass(frozen=True, slots=True)
class Need:
    """Actions needed on one resource, with the condition keys of their requests."""

    resource: str
    actions: tuple[str, ...]
    context: Mapping[str, str] = field(default_factory=dict)


def rights_checks(account: Account, caller: Caller) -> Iterator[Check]:
    """Yield the checks of PassRole, of the submitter's actions and of the job's."""
    question = Question(
        "PassRole",
        f"may these credentials give a job the role {account.role_name}",
        _ROLE_PATH,
    )
    role = account.config.role
    yield _check(
        account,
        question,
        caller.arn,
        [Need(role, ("iam:PassRole",), {"iam:PassedToService": SERVICE})],
    )
    question = Question(
        "submitting",
        "may these credentials store sources, and start, follow and stop jobs",
    )
    yield _check(account, question, caller.arn, needs_of_submit(account))
    question = Question(
        "role's rights",
        "may the job read and write the bucket, write logs and pull its image",
        _ROLE_PATH,
    )
    yield _check(account, question, role, needs_of_job(account))


def _check(account: Account, question: Question, principal: str, needs: Sequence[Need]) -> Check:
    def ask() -> Check:
        if principal.endswith(":root"):
            return question.found("these are the account's own, which may do everything")

        identity = _identity(account, principal)
        if not identity:
            return question.not_checked(f"IAM simulates no policies of {principal}")
        for need in needs:
            denied = _denied(account, identity, need)
            if denied:
                fix = (
                    f"allow {', '.join(denied)} on {need.resource}, in a policy of"
                    f" {identity.rpartition(':')[2]}"
                )
                return question.wrong(f"{', '.join(denied)} on {need.resource} is not allowed", fix)

        return question.found("yes, by IAM's simulator")

    return question.answered_by(ask)


def _arn_of_jobs(account: Account) -> str:
    place = f"{account.config.region}:{account.number}"
    return f"arn:{account.partition}:sagemaker:{place}:training-job/*"


def needs_of_submit(account: Account) -> list[Need]:
    """Return the actions of a submit and of following a run."""
    config = account.config
    jobs = _arn_of_jobs(account)
    log = f"arn:{account.partition}:logs:{config.region}:{account.number}:log-group:/aws/sagemaker/TrainingJobs"
    training_plan = account.spec.section(AwsSection).training_plan

    needs = []
    if training_plan:
        needs.append(Need(training_plan, ("sagemaker:CreateTrainingJob",), _CREATED))
    needs += [
        Need(jobs, ("sagemaker:CreateTrainingJob", "sagemaker:AddTags"), _CREATED),
        Need(jobs, ("sagemaker:DescribeTrainingJob", "sagemaker:StopTrainingJob"), _TAGGED),
        Need(_objects(account, "sources/"), ("s3:PutObject",)),
        Need(_objects(account, "runs/*/job/"), ("s3:PutObject",)),
        Need(_objects(account), ("s3:GetObject",)),
        Need(_results(account), ("s3:GetObject",)),
        Need(_bucket(account), ("s3:ListBucket",)),
        Need(f"{log}:log-stream:*", ("logs:GetLogEvents",)),
    ]
    return needs


def needs_of_job(account: Account) -> list[Need]:
    """Return the actions of SageMaker and the launcher in the role's name.

    After "SageMaker roles" in the developer guide.
    """
    config = account.config
    log = f"arn:{account.partition}:logs:{config.region}:{account.number}:log-group:/aws/sagemaker/TrainingJobs"
    needs = [
        Need(_objects(account), ("s3:GetObject",)),
        Need(_objects(account, "runs/*/checkpoints/"), ("s3:PutObject", "s3:DeleteObject")),
        Need(_results(account), ("s3:PutObject",)),
        Need(_bucket(account), ("s3:ListBucket",)),
        Need(f"{log}:log-stream:*", ("logs:CreateLogStream", "logs:PutLogEvents")),
        Need("*", ("ecr:GetAuthorizationToken",)),
    ]

    image = account.target.image_address
    if address := ECR.fullmatch(image):
        repository = parse_address(image).repository
        place = f"arn:{account.partition}:ecr:{address[2]}:{address[1]}:repository/{repository}"
        needs.append(Need(place, ("ecr:BatchGetImage", "ecr:GetDownloadUrlForLayer")))
    for bucket, prefix in inputs_of(account).values():
        place = f"arn:{account.partition}:s3:::{bucket}"
        needs.append(Need(f"{place}/{prefix}*", ("s3:GetObject",)))
        needs.append(Need(place, ("s3:ListBucket",)))
    for stores in account.spec.secrets.values():
        store, _, name = stores.get(account.target.provider, "").partition(":")
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
    if store not in actions:
        return []

    return [Need(resource, (actions[store],))]


def key_policy_check(account: Account, key: str) -> Check:
    """Check that the key's own policy lets the job's role use it, or leaves that to IAM.

    `key`: its ARN.
    """
    question = Question(
        "key policy", f"may the role {account.role_name} use the key", ("aws", "kms_key")
    )
    role = account.config.role

    def ask() -> Check:
        answer = account.cloud.call("kms", "get_key_policy", KeyId=key, PolicyName="default")
        policy = json.loads(answer["Policy"])
        for action in _KEY_ACTIONS:
            if effects(policy, action, key, account.principals) != {"Allow"}:
                fix = f"allow {role} {', '.join(_KEY_ACTIONS)} in it: aws kms put-key-policy"
                return question.wrong(f"the key's policy does not allow it {action}", fix)

        if all("Allow" in effects(policy, action, key, (role,)) for action in _KEY_ACTIONS):
            return question.found("the key's policy allows it")
        return _check(account, question, role, [Need(key, _KEY_ACTIONS)])

    return question.answered_by(ask)


def inputs_of(account: Account) -> dict[str, tuple[str, str]]:
    """Return bucket and prefix of each input in S3, by its name."""
    provider = account.target.provider
    places = {}
    for name, item in account.spec.inputs.items():
        if (item.on(provider) or "").startswith("s3://"):
            places[name] = uri_parts(input_uri(item, provider))

    return places


def _bucket(account: Account) -> str:
    return f"arn:{account.partition}:s3:::{account.config.bucket}"


def _objects(account: Account, below: str = "") -> str:
    return f"{_bucket(account)}/{PREFIX}/{below}*"


def _results(account: Account) -> str:
    """Return the objects that SageMaker writes and `fetch` reads."""
    output = account.spec.section(AwsSection).output
    if output is None:
        return _objects(account, "runs/*/output/")

    bucket, prefix = uri_parts(output)
    return f"arn:{account.partition}:s3:::{bucket}/{prefix}*"


def _identity(account: Account, principal: str) -> str:
    """Return the ARN for the simulator: a session's role, or the identity itself.

    Empty for an identity of another kind.
    """
    session = re.fullmatch(r"arn:([\w-]+):sts::(\d+):assumed-role/([^/]+)/.+", principal)
    if session is None:
        if not re.search(r":(user|role|group)/", principal):
            return ""
        return principal
    try:  # the role may have a path, which the session's ARN leaves out
        return str(account.cloud.call("iam", "get_role", RoleName=session[3])["Role"]["Arn"])
    except CloudError as error:
        if not error.is_denied:
            raise
        return f"arn:{session[1]}:iam::{session[2]}:role/{session[3]}"


def _denied(account: Account, identity: str, need: Need) -> list[str]:
    """Return the actions that the identity's policies do not allow."""
    entries = []
    for key, value in need.context.items():
        entry = {"ContextKeyName": key, "ContextKeyValues": [value], "ContextKeyType": "string"}
        entries.append(entry)

    pages = account.cloud.pages(
        "iam",
        "simulate_principal_policy",
        PolicySourceArn=identity,
        ActionNames=list(need.actions),
        ResourceArns=[need.resource],
        ContextEntries=entries,
    )
    denied = []
    for page in pages:
        for result in page["EvaluationResults"]:
            if result["EvalDecision"] != "allowed":
                denied.append(result["EvalActionName"])

    return denied
