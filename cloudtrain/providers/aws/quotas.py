"""Checks of the quotas that a request counts against."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from cloudtrain.checkup import Check, Question
from cloudtrain.errors import CloudError
from cloudtrain.units import exact_duration

if TYPE_CHECKING:
    from cloudtrain.errors import Keys
    from cloudtrain.providers.aws.client import AwsClient
    from cloudtrain.providers.aws.things import Things

Quotas = Mapping[str, Mapping[str, Any]]

LONGEST = "Longest run time for a training job"
"""Name of the quota L-33A961FD, in seconds."""

_LISTINGS = ("list_service_quotas", "list_aws_default_service_quotas")
"""Quotas of the account, then the defaults: the first list lacks quotas never raised."""


class Demand(NamedTuple):
    """Need of a request for a quota."""

    topic: str
    names: tuple[str, ...]
    """Names of quotas: one must be large enough.

    After "Amazon SageMaker AI endpoints and quotas": names for machines are `TYPE for USAGE`.
    """
    value: int
    setting: Keys
    is_usual: bool = True
    """False for a quota that not every account lists."""


def quota_checks(cloud: AwsClient, things: Things) -> Iterator[Check]:
    """Yield the checks of the quotas; their use, which is not asked, comes last."""
    demands = list(_demands(things))
    try:
        quotas = _quotas(cloud, {name for demand in demands for name in demand.names})
    except CloudError as error:
        yield Question("quotas", "are they large enough").failed(error)
        return

    for demand in demands:
        if demand.is_usual or demand.names[0] in quotas:
            yield _check(things, demand, quotas)

    yield Question("use of the quotas", "how much of them is left").not_checked(
        "no call tells what other jobs use"
    )


def _demands(things: Things) -> Iterator[Demand]:
    spot = ""
    if things.body.get("EnableManagedSpotTraining"):
        spot = "spot "

    machines_at = things.plan.spec.machines_at
    usages = {f"{spot}quota": (f"{spot}training job usage", machines_at)}
    if things.resources.get("KeepAlivePeriodInSeconds"):
        usages["warm pool"] = ("training warm pool usage", ("aws", "keep_alive"))

    for topic, (usage, setting) in usages.items():
        names = tuple(f"{kind} for {usage}" for kind in things.types)
        yield Demand(topic, names, things.machines, setting)

    seconds = things.body["StoppingCondition"]["MaxRuntimeInSeconds"]
    yield Demand("longest run", (LONGEST,), seconds, ("limits", "max_runtime"))

    name = f"Number of instances across {spot}training jobs"
    yield Demand("all instances", (name,), things.machines, machines_at, is_usual=False)
    name = "Maximum number of instances per training job"
    yield Demand("instances per job", (name,), things.nodes, machines_at, is_usual=False)


def _quotas(cloud: AwsClient, names: set[str]) -> Quotas:
    """Return quotas by name, the account's before AWS's defaults; read pages while needed."""
    quotas: dict[str, Mapping[str, Any]] = {}
    for operation in _LISTINGS:
        for page in cloud.pages("service-quotas", operation, ServiceCode="sagemaker"):
            for quota in page["Quotas"]:
                if quota["QuotaName"] in names:
                    quotas.setdefault(quota["QuotaName"], quota)

            if len(quotas) == len(names):
                return quotas

    return quotas


def _check(things: Things, demand: Demand, quotas: Quotas) -> Check:
    def text(value: float) -> str:
        if demand.names == (LONGEST,):
            return exact_duration(int(value))
        return f"{value:.0f}"

    question = Question(demand.topic, f"is {text(demand.value)} within the quota", demand.setting)
    listed = [quotas[name] for name in demand.names if name in quotas]
    if not listed:
        return question.not_checked(f"AWS lists no quota '{demand.names[0]}' in {things.region}")

    quota = max(listed, key=lambda item: float(item["Value"]))
    code = quota["QuotaCode"]
    answer = f"the quota '{quota['QuotaName']}' ({code}) is {text(quota['Value'])}"
    if quota["Value"] >= demand.value:
        return question.found(answer)

    if demand.names != (LONGEST,):
        answer += f", {things.demand}"

    fix = (
        "ask for more: aws service-quotas request-service-quota-increase --service-code sagemaker"
        f" --quota-code {code} --desired-value {demand.value} --region {things.region}"
    )
    return question.wrong(answer, f"{fix}; or change {'.'.join(map(str, demand.setting))}")
