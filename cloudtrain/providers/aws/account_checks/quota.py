"""True if the account's quotas allow the machines of a job, on demand or spot, and the pool that
keeps them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from cloudtrain.checkup import Check, Question
from cloudtrain.providers.aws.account_checks import Account
from cloudtrain.providers.aws.section import AwsSection

ON_DEMAND = "training job usage"
SPOT = "spot training job usage"
WARM_POOL = "training warm pool usage"
"""After "Amazon SageMaker AI endpoints and quotas": each quota is called `TYPE for USAGE`."""

_LISTINGS = ("list_service_quotas", "list_aws_default_service_quotas")
"""What an account has, and then what all have: the first leaves out quotas that were never raised
(API reference).
"""

_CONSOLES = {"cn-": "console.amazonaws.cn", "us-gov-": "console.amazonaws-us-gov.com"}


def quota_checks(account: Account) -> Iterator[Check]:
    """The quota of the job's machines, and that of kept machines where the job keeps them."""
    usage, name = (SPOT, "spot quota") if account.spec.resources.spot else (ON_DEMAND, "quota")
    yield _check(account, name, usage, account.spec.machines_at)
    if account.spec.section(AwsSection).keep_alive:
        yield _check(account, "warm pool", WARM_POOL, ("aws", "keep_alive"))


def _check(account: Account, name: str, usage: str, at: tuple[str, ...]) -> Check:
    types = account.target.instances
    verb = "be kept" if usage == WARM_POOL else "run"
    asked = Question(name, f"may {account.spec.machines} x {' or '.join(types)} {verb} at once", at)

    def ask() -> Check:
        quotas = _quotas(account, {f"{each} for {usage}" for each in types})
        for kind in types:
            quota = quotas.get(f"{kind} for {usage}")
            if quota is not None and quota["Value"] >= account.spec.machines:
                return asked.ok(
                    f"the quota '{quota['QuotaName']}' ({quota['QuotaCode']}) is"
                    f" {quota['Value']:.0f}"
                )
        if not quotas:
            return asked.not_applicable(
                f"AWS lists no quota '{types[0]} for {usage}' in {account.config.region}"
            )
        return _too_small(account, asked, next(iter(quotas.values())))

    return asked.answered_by(ask)


def _too_small(account: Account, asked: Question, quota: Mapping[str, Any]) -> Check:
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
    return asked.wrong(
        message, f"ask for more: {link}, or {command}; or name another instance type"
    )


def _quotas(account: Account, names: set[str]) -> dict[str, Mapping[str, Any]]:
    """Quotas of these names, those of the account before AWS's defaults. Pages are read until all
    are found.
    """
    found: dict[str, Mapping[str, Any]] = {}
    for operation in _LISTINGS:
        for page in account.cloud.pages("service-quotas", operation, ServiceCode="sagemaker"):
            for quota in page["Quotas"]:
                if quota["QuotaName"] in names:
                    found.setdefault(quota["QuotaName"], quota)
            if len(found) == len(names):
                return found
    return found
