"""ARM's view of a workspace and its region, and its rules for a job beyond the form of its body."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

from tests.fakes.azure.account import (
    DATASTORES,
    DEDICATED,
    LOW_PRIORITY,
    PROVIDER,
    SUFFIX,
    WORKSPACE_ID,
    WORKSPACE_IDENTITY,
    WORKSPACES,
    Account,
    Cluster,
    VmSize,
)
from tests.fakes.azure.assets import Assets
from tests.fakes.azure.jobs import Job
from tests.fakes.azure.permissions import invalid, user_error
from tests.fakes.azure.recorded import Form, duration_seconds, form
from tests.fakes.azure.sweeps import template
from tests.fakes.azure.tokens import CLIENT
from tests.fakes.azure.wire import DISCOVERY, iso_date
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
    if properties["jobType"] not in ("Command", "Sweep"):
        raise invalid(f"This imitation does not run {properties['jobType']} jobs.")
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


Resource = dict[str, Any]


def workspace(account: Account, version: str) -> Resource:
    """The workspace itself."""
    values = {
        "workspaceId": WORKSPACE_ID,
        "friendlyName": account.workspace,
        "tenantId": account.tenant,
        "discoveryUrl": f"{account.url}{DISCOVERY}",
        "mlFlowTrackingUri": f"azureml://{account.location}.loopback{account.scope}",
        "provisioningState": account.workspace_state,
        "storageAccount": account.resource(
            "Microsoft.Storage/storageAccounts", account.storage_account
        ),
        "keyVault": account.part("keyVault"),
        "containerRegistry": account.part("containerRegistry"),
    }
    moment = iso_date(account.created)
    return {
        "id": account.scope,
        "name": account.workspace,
        "type": WORKSPACES,
        "location": account.location,
        "tags": {},
        "etag": None,
        "properties": form(r"/workspaces/{ws}\?", version).filled(values),
        "identity": {
            "type": "SystemAssigned",
            "principalId": account.parts.get("identity", WORKSPACE_IDENTITY),
            "tenantId": account.tenant,
        },
        "kind": "Default",
        "sku": {"name": "Basic", "tier": "Basic"},
        "systemData": {
            "createdAt": moment,
            "createdBy": CLIENT,
            "createdByType": "User",
            "lastModifiedAt": moment,
            "lastModifiedBy": CLIENT,
            "lastModifiedByType": "User",
        },
    }


def compute(account: Account, name: str, version: str) -> Resource | None:
    """Return a cluster; None for an unknown name, which the service answers without a body."""
    cluster = account.computes.get(name)
    if cluster is None:
        return None
    compute_form = form("/computes/", version)
    machines = Form({}, compute_form.answered["properties"]).filled(
        {
            "vmSize": cluster.vm_size.upper(),
            "allocationState": "Steady",
            "vmPriority": "LowPriority" if cluster.low_priority else "Dedicated",
            "scaleSettings": {
                "maxNodeCount": cluster.max_nodes,
                "minNodeCount": 0,
                "nodeIdleTimeBeforeScaleDown": "PT2M",
            },
        }
    )
    values = {
        "computeLocation": account.location,
        "provisioningState": cluster.state,
        "properties": machines,
    }
    return {
        "id": f"{account.scope}/computes/{name}",
        "name": name,
        "type": f"{WORKSPACES}/computes",
        "location": account.location,
        "tags": {},
        **_identity(account, cluster),
        "properties": Form({}, compute_form.answered).filled(values),
    }


def _identity(account: Account, cluster: Cluster) -> Resource:
    """Return a cluster's identity. Recorded clusters have none; role assignments here need one."""
    ids = {"tenantId": account.tenant, "principalId": cluster.identity}
    if cluster.client:
        name = account.resource("Microsoft.ManagedIdentity/userAssignedIdentities", "jobs")
        assigned = {name: {**ids, "clientId": cluster.client}}
        return {"identity": {"type": "UserAssigned", "userAssignedIdentities": assigned}}
    if not cluster.identity:
        return {"identity": {"type": "None"}}

    return {"identity": {"type": "SystemAssigned", **ids}}


def datastore(account: Account, name: str, version: str) -> Resource:
    """Return a datastore. Refuse an unknown name."""
    if name not in DATASTORES:
        raise user_error(f"Could not find datastore: {name}", 404)
    is_default = name == next(iter(DATASTORES))
    values = {
        "isDefault": is_default,
        "accountName": account.storage_account,
        "containerName": DATASTORES[name],
        "endpoint": SUFFIX,
        "credentials": {"credentialsType": account.datastore_credentials},
        "subscriptionId": account.subscription,
        "resourceGroup": account.resource_group,
    }
    moment = iso_date(account.created)
    return {
        "id": f"{account.scope}/datastores/{name}",
        "name": name,
        "type": f"{WORKSPACES}/datastores",
        "properties": form(r"/datastores/workspaceblobstore\?", version).filled(values),
        "systemData": {
            "createdAt": moment,
            "lastModifiedAt": moment,
            "lastModifiedBy": CLIENT,
            "lastModifiedByType": "Application",
        },
    }


def secrets(account: Account, name: str, body: Resource) -> Resource:
    """Return what opens a datastore, as recorded: a signature of one hour if it is asked for.

    It is given even if the storage account takes no keys.
    """
    if name not in DATASTORES:
        raise user_error(f"Could not find datastore: {name}", 404)
    if not body.get("expirableSecret"):
        return {"secretsType": "AccountKey", "key": "this imitation takes no key"}
    return {
        "secretsType": "Sas",
        "sasToken": f"?{account.tokens.account_sas(account.secret_seconds)}",
    }


def usages(account: Account, jobs: Sequence[Job]) -> list[Resource]:
    """Return every quota of the region as Microsoft's example of "Usages - List" has them.

    Names are words, the totals share one id, quotas of families at low priority have the limit -1,
    and the quotas of other workspaces are in the same list.
    """
    sizes = account.vm_sizes
    words = {size.family: size.family_words for size in sizes.values()}
    subscription = f"/subscriptions/{account.subscription}"
    elsewhere = f"{subscription}/resourceGroups/elsewhere/providers/{PROVIDER}/workspaces/elsewhere"

    def usage(name: str, used: int, limit: int, kind: str, owner: str = "") -> Resource:
        row = f"/{name.replace(' ', '_')}" if name.startswith("Standard") else ""
        return {
            "id": f"{owner or subscription}/usages{row}",
            "type": f"{PROVIDER}/{kind}/usages",
            "currentValue": used,
            "limit": limit,
            "name": {"value": name, "localizedValue": name},
            "unit": "Count",
        }

    def of_quota(quota: str, name: str, kind: str) -> Resource:
        return usage(name, vcpus_used(quota, sizes, jobs), account.limit_of(quota), kind)

    rows = [usage("Clusters", len(account.computes), 200, "totalCores")]
    rows.append(of_quota(DEDICATED, "Total Cluster Dedicated Regional vCPUs", DEDICATED))
    for family in sorted(words):
        name = f"{words[family]} Family Cluster Dedicated vCPUs"
        rows.append(of_quota(family, name, "vmFamily"))
        rows.append(usage(name, 0, 0, "workspaces", elsewhere))
    rows.append(of_quota(LOW_PRIORITY, "Total Cluster LowPriority Regional vCPUs", LOW_PRIORITY))
    for family in sorted(words):
        rows.append(usage(f"{words[family]} Family Cluster LowPriority vCPUs", 0, -1, "vmFamily"))
    return rows


def sizes(account: Account) -> list[Resource]:
    """The machines that there are in this region."""
    return [
        {
            "name": name,
            "family": size.family,
            "vCPUs": size.vcpus,
            "gpus": size.gpus,
            "memoryGB": 16,
            "osVhdSizeMB": 1_047_552,
            "maxResourceVolumeMB": 65_536,
            "lowPriorityCapable": True,
            "premiumIO": True,
            "supportedComputeTypes": ["AmlCompute", "ComputeInstance"],
        }
        for name, size in account.vm_sizes.items()
    ]
