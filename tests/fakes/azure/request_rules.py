"""Azure ML's rules for a job's PUT beyond the form of its body; in the service's wording if known."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from itertools import chain
from typing import Any

from tests.fakes.azure.account import DEDICATED, LOW_PRIORITY, Account, VmSize
from tests.fakes.azure.assets import Assets
from tests.fakes.azure.jobs import Job
from tests.fakes.azure.permissions import invalid, user_error
from tests.fakes.azure.recorded import duration_seconds, violations
from tests.fakes.azure.sweeps import template
from tests.fakes.messages import ServiceError

Body = Mapping[str, Any]
NAME = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9_-]{0,254}")
_QUOTAS = (
    "https://docs.microsoft.com/azure/machine-learning/how-to-manage-quotas#request-quota-increases"
)


def refuse(name: str, body: Body, account: Account, assets: Assets, jobs: Collection[Job]) -> None:
    """Raise the first reason against a request, if there is one."""
    if not NAME.fullmatch(name):
        raise invalid(
            f"The job name {name} is not valid. Names may only contain alphanumeric characters,"
            " dashes and underscores, must begin with an alphanumeric character and have at most"
            " 255 characters."
        )
    properties = body["properties"]
    problems = violations(properties)
    if problems:
        raise invalid(*problems)
    space: Body = {}
    if properties["jobType"] == "Sweep":
        if error := next(_compute(properties, account), None):
            error.message = f"{properties['experimentName']}: Compute Not Found for run ID : {name}"
            error.inner = ()
            raise error
        space = properties["searchSpace"]
        properties = template(properties)
    reasons = chain(
        _machines(properties, account),
        _assets(properties, account, assets),
        _words(properties, {f"search_space.{name}" for name in space}),
    )
    for refused in reasons:  # the first one only: those after it may rely on what it misses
        raise refused
    _quota(properties, account, jobs)


def machines(properties: Body, account: Account) -> tuple[str, bool]:
    """The VM size that a request runs on, and whether at low priority."""
    if "computeId" in properties:
        cluster = account.computes[properties["computeId"].rpartition("/")[2]]
        return cluster.vm_size, cluster.low_priority
    spot = properties.get("queueSettings", {}).get("jobTier") == "Spot"
    return properties["resources"]["instanceType"], spot


def _machines(properties: Body, account: Account) -> Iterator[ServiceError]:
    resources = properties.get("resources", {})
    compute = properties.get("computeId")
    size = resources.get("instanceType")
    if compute is None:
        if size is None:
            yield user_error(
                "A job without a compute needs resources.instanceType in this imitation."
            )
        if size not in account.vm_sizes:
            yield user_error(
                f"The specified VM size {size} is not supported in {account.location}."
            )
        return
    if size is not None:
        yield user_error(
            "InstanceType cannot be specified together with a compute target: the cluster has its"
            " own."
        )
    if "queueSettings" in properties:
        yield user_error(
            "QueueSettings can be specified for serverless jobs only, not together with a compute"
            " target."
        )
    if error := next(_compute(properties, account), None):
        yield error
        return
    name = compute.rpartition("/")[2]
    cluster = account.computes[name]
    nodes = resources.get("instanceCount", 1)
    if cluster.state != "Succeeded":
        yield user_error(
            f"The compute target {name} is in provisioning state {cluster.state} and takes no jobs."
        )
    if nodes > cluster.max_nodes:
        yield user_error(
            f"Requested {nodes} nodes but AzureMLCompute cluster only has {cluster.max_nodes}"
            " maximum nodes."
        )


def _compute(properties: Body, account: Account) -> Iterator[ServiceError]:
    compute = properties.get("computeId")
    if compute and _below(compute, account, "computes") not in account.computes:
        message = f"Unknown compute target '{compute.rpartition('/')[2]}'."
        yield user_error(message, 400, "BadArgument", "UnknownTargetType")


def _assets(properties: Body, account: Account, assets: Assets) -> Iterator[ServiceError]:
    code = properties.get("codeId")
    if code is not None and assets.code(code) is None:
        yield user_error(f"Code {code} could not be found in the workspace.", 404)
    environment = properties["environmentId"]
    if assets.image(environment) is None:
        yield user_error(f"Environment {environment} could not be found in the workspace.", 404)


def _words(properties: Body, tuned: set[str]) -> Iterator[ServiceError]:
    declared = tuned | {
        f"{kind}.{name}" for kind in ("inputs", "outputs") for name in properties.get(kind, {})
    }
    for word in re.findall(r"\$\{\{\s*(.*?)\s*\}\}", properties["command"]):
        if word not in declared:
            yield user_error(
                f"The command refers to ${{{{{word}}}}}, which is neither an input nor an output."
            )
    timeout = properties.get("limits", {}).get("timeout")
    if timeout is not None and not duration_seconds(timeout):
        yield invalid(
            f"limits.timeout: '{timeout}' is not a duration in ISO 8601 format of at least one"
            " second."
        )


def _quota(properties: Body, account: Account, jobs: Collection[Job]) -> None:
    size, low_priority = machines(properties, account)
    kind = account.vm_sizes[size]
    nodes = properties.get("resources", {}).get("instanceCount", 1)
    for name in quota_names(size, low_priority, account.vm_sizes):
        limit = account.limit_of(name)
        if vcpus_used(name, account.vm_sizes, jobs) + nodes * kind.vcpus <= limit:
            continue
        words = _TOTALS.get(name) or f"{kind.family_words} family"
        raise user_error(
            "Job submission to AzureML Compute encountered an Exception with status code"
            f" JobNodeCountExceedsCoreQuota, The specified subscription has a {words} vCPU quota of"
            f" {limit} and is less than the requested job node count of {nodes} which maps to"
            f" {nodes * kind.vcpus} vCPUs. Talk to your Subscription Admin or refer to {_QUOTAS} to"
            f" increase the {words} vCPU quota"
        )


_TOTALS = {DEDICATED: "total dedicated", LOW_PRIORITY: "total low priority"}


def quota_names(size: str, low_priority: bool, sizes: Mapping[str, VmSize]) -> tuple[str, ...]:
    """Quotas that a machine counts to: its family's and the total, or the total at low priority."""
    return (LOW_PRIORITY,) if low_priority else (sizes[size].family, DEDICATED)


def vcpus_used(name: str, sizes: Mapping[str, VmSize], jobs: Iterable[Job]) -> int:
    """Return how many vCPUs the jobs that are not over use of a quota."""
    return sum(
        job.nodes * sizes[job.vm_size].vcpus
        for job in jobs
        if not job.has_ended and name in quota_names(job.vm_size, job.low_priority, sizes)
    )


def _below(arm_id: str, account: Account, kind: str) -> str | None:
    """The name in the ARM id of something in this workspace."""
    scope, _, name = arm_id.rpartition(f"/{kind}/")
    return name if scope.lower() == account.scope.lower() and name else None
