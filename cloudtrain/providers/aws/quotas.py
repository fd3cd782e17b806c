"""Checks of the quotas that a request counts against."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from cloudtrain.checkup import Check, NotCheckedError, Question
from cloudtrain.errors import CloudError, RefusedError
from cloudtrain.units import exact_duration

if TYPE_CHECKING:
    from cloudtrain.errors import Keys
    from cloudtrain.providers.aws.things import Things

Quota = Mapping[str, Any]

LONGEST = "Longest run time for a training job"
"""Name of the quota L-33A961FD, in seconds."""

_LISTINGS = ("list_service_quotas", "list_aws_default_service_quotas")
"""Quotas of the account, then the defaults: the first list lacks quotas never raised."""


class Demand(NamedTuple):
    """Need of a request for a quota."""

    topic: str
    setting: Keys
    value: int
    names: list[str]
    """Names of quotas: one must be large enough.

    After "Amazon SageMaker AI endpoints and quotas": names for machines are `TYPE for USAGE`.
    """
    is_usual: bool = True
    """False for a quota that not every account lists."""


def quota_checks(things: Things) -> Iterator[Check]:
    """Yield the checks of the quotas; their use, which is not asked, comes last."""
    demands = _demands(things)
    try:
        quotas = _quotas(things, {name for demand in demands for name in demand.names})
    except CloudError as error:
        yield Question("quotas", "are they large enough").failed(error)
        return

    for demand in demands:
        listed = [quotas[name] for name in demand.names if name in quotas]
        if demand.is_usual or listed:
            words = f"is {_shown(demand, demand.value)} within the quota"
            question = Question(demand.topic, words, demand.setting)
            yield question.asked(_quota, things, demand, listed)

    yield Question("use of the quotas", "how much of them is left").not_checked(
        "no call tells what other jobs use"
    )


def _demands(things: Things) -> list[Demand]:
    spot = "spot " if things.body.get("EnableManagedSpotTraining") else ""
    place = things.plan.spec.machines_at
    count = f"Number of instances across {spot}training jobs"
    seconds = things.body["StoppingCondition"]["MaxRuntimeInSeconds"]
    names = [f"{kind} for {spot}training job usage" for kind in things.types]
    demands = [
        Demand(f"{spot}quota", place, things.machines, names),
        Demand("longest run", ("limits", "max_runtime"), seconds, [LONGEST]),
        Demand("all instances", place, things.machines, [count], is_usual=False),
    ]
    name = "Maximum number of instances per training job"
    demands.append(Demand("instances per job", place, things.nodes, [name], is_usual=False))
    if things.resources.get("KeepAlivePeriodInSeconds"):
        pools = [f"{kind} for training warm pool usage" for kind in things.types]
        demands.append(Demand("warm pool", ("aws", "keep_alive"), things.machines, pools))

    return demands


def _quotas(things: Things, names: set[str]) -> dict[str, Quota]:
    """Return quotas by name, the account's before AWS's defaults; read pages while needed."""
    quotas: dict[str, Quota] = {}
    for operation in _LISTINGS:
        for page in things.cloud.pages("service-quotas", operation, ServiceCode="sagemaker"):
            for quota in page["Quotas"]:
                if quota["QuotaName"] in names:
                    quotas.setdefault(quota["QuotaName"], quota)

            if len(quotas) == len(names):
                return quotas

    return quotas


def _quota(things: Things, demand: Demand, listed: list[Quota]) -> str:
    """Return the largest of the listed quotas, which has to be large enough."""
    region = things.cloud.region
    if not listed:
        raise NotCheckedError(f"AWS lists no quota '{demand.names[0]}' in {region}")

    quota = max(listed, key=lambda item: float(item["Value"]))
    code = quota["QuotaCode"]
    answer = f"the quota '{quota['QuotaName']}' ({code}) is {_shown(demand, quota['Value'])}"
    if quota["Value"] >= demand.value:
        return answer
    if demand.names != [LONGEST]:
        answer += f", {things.demand}"

    fix = (
        "ask for more: aws service-quotas request-service-quota-increase --service-code sagemaker"
        f" --quota-code {code} --desired-value {demand.value} --region {region}"
    )
    raise RefusedError(answer, hint=f"{fix}; or change {'.'.join(map(str, demand.setting))}")


def _shown(demand: Demand, value: float) -> str:
    if demand.names == [LONGEST]:
        return exact_duration(int(value))

    return f"{value:.0f}"
