"""True if the workspace is there, where the settings say, and has the machines of the job: a
cluster, or quota.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from cloudtrain.checkup import Check, Question
from cloudtrain.errors import CloudError, RefusedError
from cloudtrain.providers.azure.account_checks import ML_VERSION, Account, workspace_id
from cloudtrain.providers.azure.quota import refuse_cluster, refuse_serverless
from cloudtrain.providers.shared.clock import clock_check

if TYPE_CHECKING:
    from cloudtrain.providers.azure.arm import ResourceManager
    from cloudtrain.providers.azure.config import AzureConfig


def workspace_checks(
    arm: ResourceManager, config: AzureConfig, found: dict[str, Any]
) -> Iterator[Check]:
    """Check that it is there and in the location of the settings; and the clock. `found`: takes what
    ARM says of it.
    """
    asked = Question("workspace", f"is {config.workspace} there and ready", ("azure", "workspace"))
    try:
        answer = arm.get(workspace_id(config), ML_VERSION)
    except CloudError as error:
        is_missing = error.code in ("NoWorkspace", "NotFound")
        yield (
            asked.wrong(error.what, error.hint or "az ml workspace list")
            if is_missing
            else asked.failed(error)
        )
        return
    yield clock_check(answer.date, time.time())
    found.update(answer.document)
    there = str(found.get("location") or "")
    state = (found.get("properties") or {}).get("provisioningState")
    if config.location and there and there != config.location:
        yield asked.wrong(f"it is in {there}, not in {config.location}", f"azure.location: {there}")
    elif state not in (None, "Succeeded"):
        yield asked.wrong(
            f"its state is {state}", "az ml workspace show tells more; wait, or make it again"
        )
    else:
        yield asked.ok(f"it is, in {there}")


def machines_check(account: Account) -> Check:
    """Check that the cluster can run the job, or the quota allows its machines."""
    config = account.config
    spec = account.spec
    types = account.target.instances
    gpus = account.target.gpus or 0
    nodes = spec.resources.nodes
    compute = config.compute or ""
    asked = (
        Question(
            "compute",
            f"has the cluster {compute} {nodes} nodes of the planned kind",
            ("azure", "compute"),
        )
        if compute
        else Question("quota", f"may {spec.machines} x {types[0]} run at once", spec.machines_at)
    )

    def ask() -> Check:
        try:
            if compute:
                refuse_cluster(account.cloud, compute, nodes, types[0] if types else "", gpus)
                return _state(account, asked)
            quotas = refuse_serverless(
                account.cloud, types[0], spec.machines, spot=spec.resources.spot
            )
        except RefusedError as error:
            return asked.wrong(error.what, error.hint or "")
        if not quotas:
            return asked.not_applicable(f"no quota of the region names the family of {types[0]}")
        return asked.ok("they may, by " + ", ".join(quotas))

    return asked.answered_by(ask)


def _state(account: Account, asked: Question) -> Check:
    """Only a cluster that was made without an error takes jobs."""
    found = account.arm.get(f"{account.scope}/computes/{account.config.compute}", ML_VERSION)
    state = found.document["properties"].get("provisioningState")
    if state not in (None, "Succeeded"):
        return asked.wrong(
            f"its state is {state}", f"az ml compute show --name {account.config.compute} tells why"
        )
    return asked.ok("it has")
