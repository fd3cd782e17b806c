"""Checks of credentials, clock, and the trust of the execution role in SageMaker."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from cloudtrain.checkup import Check, Question
from cloudtrain.errors import CloudError
from cloudtrain.providers.shared.clock import clock_check

if TYPE_CHECKING:
    from cloudtrain.planning.target import Target
    from cloudtrain.providers.aws.client import AwsClient
    from cloudtrain.providers.aws.config import AwsConfig
    from cloudtrain.spec.model import JobSpec

SERVICE = "sagemaker.amazonaws.com"

_CREDENTIALS = Question("credentials", "whose are they")
_ROLE_PATH = ("aws", "role")


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
        yield off if off.is_wrong else _CREDENTIALS.failed(error)
        return
    caller = Caller(arn=answer["Arn"], account=answer["Account"])
    yield _CREDENTIALS.ok(caller.arn)
    yield clock_check(_date(answer), time.time())
    yield caller


def account_check(account: Account, caller: Caller) -> Check:
    """Check that the role is in the same account, as SageMaker requires."""
    question = Question(
        "account", f"are these credentials of the role's account, {account.number}", _ROLE_PATH
    )
    if caller.account == account.number:
        return question.ok("they are")
    fix = "credentials of that account (AWS_PROFILE, --profile), or a role of this one in aws.role"
    return question.wrong(f"they are of {caller.account}", fix)


def role_check(account: Account) -> Check:
    """Check that the role exists and lets SageMaker assume it for jobs here."""
    question = Question(
        "execution role", f"is {account.role_name} there, and may SageMaker assume it", _ROLE_PATH
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
        why = distrust(role.get("AssumeRolePolicyDocument") or {})
        if why:
            fix = (
                f"add {SERVICE} to its trust policy: aws iam update-assume-role-policy --role-name"
                f" {account.role_name}"
            )
            return question.wrong(why, fix)
        return question.ok("it is, and trusts SageMaker")

    return question.answered_by(ask)


def distrust(policy: Mapping[str, Any]) -> str:
    """Return why a trust policy does not let SageMaker assume the role; empty if it does."""
    trusted = {
        name
        for statement in _as_list(policy.get("Statement"))
        if statement.get("Effect") == "Allow"
        for name in _principals(statement)
    }
    if trusted & {SERVICE, "*"}:
        return ""
    return f"it does not trust {SERVICE}, but {', '.join(sorted(trusted)) or 'nobody'}"


def _principals(statement: Mapping[str, Any]) -> list[str]:
    principal = statement.get("Principal") or {}
    if isinstance(principal, str):
        return [principal]
    return [name for names in principal.values() for name in _as_list(names)]


def _as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [] if value is None else [value]


def _date(answer: Mapping[str, Any]) -> str:
    headers = answer.get("ResponseMetadata", {}).get("HTTPHeaders", {})
    return str(headers.get("date", ""))
