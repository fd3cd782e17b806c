"""Checks of credentials, clock, and the trust of the execution role in SageMaker."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

from cloudtrain.checkup import Check, Question
from cloudtrain.errors import CloudError
from cloudtrain.providers.aws.account_checks import Account, Caller
from cloudtrain.providers.shared.clock import clock_check

if TYPE_CHECKING:
    from cloudtrain.providers.aws.client import AwsClient

SERVICE = "sagemaker.amazonaws.com"

_CREDENTIALS = Question("credentials", "whose are they")
_ROLE_PATH = ("aws", "role")


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
        why = distrust(
            role.get("AssumeRolePolicyDocument") or {}, account.number, account.config.region
        )
        if why:
            fix = (
                f"add {SERVICE} to its trust policy: aws iam update-assume-role-policy --role-name"
                f" {account.role_name}"
            )
            return question.wrong(why, fix)
        return question.ok("it is, and trusts SageMaker")

    return question.answered_by(ask)


def distrust(policy: Mapping[str, Any], number: str, region: str) -> str:
    """Return why a trust policy does not let SageMaker assume the role; empty if it does.

    After "SageMaker roles" (developer guide) and "Cross-service confused deputy prevention":
    SageMaker passes its account and job as aws:SourceAccount and aws:SourceArn.
    """
    statements = _as_list(policy.get("Statement"))
    relevant = [
        statement for statement in statements if _names_sagemaker(statement) and _assumes(statement)
    ]
    for statement in relevant:
        if statement.get("Effect") == "Deny" and not _conditions(statement, number, region):
            return "its trust policy denies SageMaker to assume it"

    allowed = [statement for statement in relevant if statement.get("Effect") == "Allow"]
    if not allowed:
        trusted = sorted({name for statement in statements for name in _principals(statement)})
        return f"it does not trust {SERVICE}, but {', '.join(trusted) or 'nobody'}"
    reasons = [_conditions(statement, number, region) for statement in allowed]
    return "" if "" in reasons else reasons[0]


def _names_sagemaker(statement: Mapping[str, Any]) -> bool:
    return bool({SERVICE, "*"} & set(_principals(statement)))


def _assumes(statement: Mapping[str, Any]) -> bool:
    return any(
        fnmatchcase("sts:assumerole", action.lower())
        for action in _as_list(statement.get("Action"))
    )


def _principals(statement: Mapping[str, Any]) -> list[str]:
    principal = statement.get("Principal") or {}
    if isinstance(principal, str):
        return [principal]
    return [name for names in principal.values() for name in _as_list(names)]


def _conditions(statement: Mapping[str, Any], number: str, region: str) -> str:
    """Return why a job here does not meet the conditions; empty if it does."""
    context = {
        "aws:sourceaccount": number,
        "aws:sourcearn": f"arn:aws:sagemaker:{region}:{number}:training-job/name",
    }
    for operator, keys in (statement.get("Condition") or {}).items():
        for key, values in keys.items():
            value = context.get(key.lower())
            patterns = _as_list(values)
            if (
                value is None
                or operator.startswith("ForAnyValue")
                or operator.lower().startswith(("null", "bool"))
            ):
                continue
            matches = any(
                fnmatchcase(value, pattern.replace("arn:aws-*", "arn:aws*")) for pattern in patterns
            )
            if matches == ("Not" in operator):
                return (
                    f"it trusts SageMaker only where {key} is {', '.join(patterns)}, and a job's is"
                    f" {value}"
                )
    return ""


def _as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [] if value is None else [value]


def _date(answer: Mapping[str, Any]) -> str:
    headers = answer.get("ResponseMetadata", {}).get("HTTPHeaders", {})
    return str(headers.get("date", ""))
