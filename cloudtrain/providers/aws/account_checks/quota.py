"""Checks of the account's quotas for a job's machines and its warm pool."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from cloudtrain.checkup import Check, Question
from cloudtrain.providers.aws.account_checks import Account
from cloudtrain.providers.aws.section import AwsSection

ON_DEMAND = "training job usage"
SPOT = "spot training job usage"
WARM_POOL = "training warm pool usage"
"""Names after "Amazon SageMaker AI endpoints and quotas": `TYPE for USAGE`."""

_LISTINGS = ("list_service_quotas", "list_aws_default_service_quotas")
"""Quotas of the account, then the defaults: the first list lacks quotas never raised."""

_CONSOLES = {"cn-": "console.amazonaws.cn", "us-gov-": "console.amazonaws-us-gov.com"}


def quota_checks(account: Account) -> Iterator[Check]:
    """Yield the check of the machines' quota, and of the warm pool's if the job has one."""
    usage, name = (SPOT, "spot quota") if account.spec.resources.spot else (ON_DEMAND, "quota")
    yield _check(account, name, usage, account.spec.machines_at)
    if account.spec.section(AwsSection).keep_alive:
        yield _check(account, "warm pool", WARM_POOL, ("aws", "keep_alive"))


def _check(account: Account, name: str, usage: str, path: tuple[str, ...]) -> Check:
    types = account.target.instances
    verb = "be kept" if usage == WARM_POOL else "run"
    question = Question(
        name, f"may {account.spec.machines} x {' or '.join(types)} {verb} at once", path
    )

    def ask() -> Check:
        quotas = _quotas(account, {f"{kind} for {usage}" for kind in types})
        for kind in types:
            quota = quotas.get(f"{kind} for {usage}")
            if quota is not None and quota["Value"] >= account.spec.machines:
                return question.ok(
                    f"the quota '{quota['QuotaName']}' ({quota['QuotaCode']}) is"
                    f" {quota['Value']:.0f}"
                )
        if not quotas:
            return question.not_applicable(
                f"AWS lists no quota '{types[0]} for {usage}' in {account.config.region}"
            )
        return _too_small(account, question, next(iter(quotas.values())))

    return question.answered_by(ask)


def _too_small(account: Account, question: Question, quota: Mapping[str, Any]) -> Check:
    region = account.config.region
    code = quota["QuotaCode"]
    console = next(
        (host for start, host in _CONSOLES.items() if region.startswith(start)),
        "console.aws.amazon.com",
    )
    link = f"https://{region}.{console}/servicequotas/home/services/sagemaker/quotas/{code}"
    command = (
        "aws service-quotas request-service-quota-increase --service-code sagemaker --quota-code"
        f" {code} --desired-value {account.spec.machines} --region {region}"
    )
    message = f"the quota '{quota['QuotaName']}' ({code}) is {quota['Value']:.0f}, {account.demand}"
    return question.wrong(
        message, f"ask for more: {link}, or {command}; or name another instance type"
    )


def _quotas(account: Account, names: set[str]) -> dict[str, Mapping[str, Any]]:
    """Return quotas by name, the account's before AWS's defaults; read pages while needed."""
    quotas: dict[str, Mapping[str, Any]] = {}
    for operation in _LISTINGS:
        for page in account.cloud.pages("service-quotas", operation, ServiceCode="sagemaker"):
            for quota in page["Quotas"]:
                if quota["QuotaName"] in names:
                    quotas.setdefault(quota["QuotaName"], quota)
            if len(quotas) == len(names):
                return quotas
    return quotas
