"""ARM's view of a workspace: itself, its clusters and datastores, the machines and quotas of its
region.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tests.fakes.azure.account import (
    DATASTORES,
    DEDICATED,
    LOW_PRIORITY,
    PROVIDER,
    SUFFIX,
    WORKSPACE_IDENTITY,
    WORKSPACES,
    Account,
)
from tests.fakes.azure.errors import user_error
from tests.fakes.azure.jobs import Job
from tests.fakes.azure.request_rules import vcpus_used
from tests.fakes.azure.wire import DISCOVERY

Resource = dict[str, Any]


def workspace(account: Account) -> Resource:
    """The workspace itself."""
    return {
        "id": account.scope,
        "name": account.workspace,
        "type": WORKSPACES,
        "location": account.location,
        "kind": "Default",
        "identity": {
            "type": "SystemAssigned",
            "tenantId": account.tenant,
            "principalId": account.parts.get("identity", WORKSPACE_IDENTITY),
        },
        "sku": {"name": "Basic", "tier": "Basic"},
        "properties": {
            "workspaceId": account.subscription,
            "friendlyName": account.workspace,
            "discoveryUrl": f"{account.url}{DISCOVERY}",
            "mlFlowTrackingUri": f"azureml://{account.location}.loopback{account.scope}",
            "provisioningState": account.workspace_state,
            "storageAccount": account.resource(
                "Microsoft.Storage/storageAccounts", account.storage_account
            ),
            "keyVault": account.part("keyVault"),
            "containerRegistry": account.part("containerRegistry"),
        },
    }


def compute(account: Account, name: str) -> Resource:
    """Return a cluster. Refuse an unknown name."""
    cluster = account.computes.get(name)
    if cluster is None:
        raise user_error(f"Compute {name} could not be found in the workspace.", 404)
    scale = {
        "maxNodeCount": cluster.max_nodes,
        "minNodeCount": 0,
        "nodeIdleTimeBeforeScaleDown": "PT2M",
    }
    facts = {
        "vmSize": cluster.vm_size,
        "vmPriority": "LowPriority" if cluster.low_priority else "Dedicated",
        "osType": "Linux",
        "scaleSettings": scale,
        "allocationState": "Steady",
        "currentNodeCount": 0,
        "targetNodeCount": 0,
        "remoteLoginPortPublicAccess": "Disabled",
    }
    return {
        "id": f"{account.scope}/computes/{name}",
        "name": name,
        "type": f"{WORKSPACES}/computes",
        "location": account.location,
        "identity": {
            "type": "SystemAssigned",
            "tenantId": account.tenant,
            "principalId": cluster.identity,
        },
        "properties": {
            "computeType": "AmlCompute",
            "provisioningState": cluster.state,
            "properties": facts,
        },
    }


def datastore(account: Account, name: str) -> Resource:
    """Return a datastore. Refuse an unknown name."""
    if name not in DATASTORES:
        raise user_error(f"Could not find datastore: {name}", 404)
    return {
        "id": f"{account.scope}/datastores/{name}",
        "name": name,
        "type": f"{WORKSPACES}/datastores",
        "properties": {
            "datastoreType": "AzureBlob",
            "isDefault": name == next(iter(DATASTORES)),
            "accountName": account.storage_account,
            "containerName": DATASTORES[name],
            "endpoint": SUFFIX,
            "protocol": "https",
            "credentials": {"credentialsType": account.datastore_credentials},
            "tags": {},
            "properties": {},
        },
    }


def secrets(account: Account, name: str, *, expirable: bool) -> Resource:
    """Return what opens a datastore, as recorded: a signature of one hour if the client asks for
    it.

    It is given even if the storage account takes no keys.
    """
    datastore(account, name)
    if expirable:
        return {
            "secretsType": "Sas",
            "sasToken": f"?{account.tokens.account_sas(account.secret_seconds)}",
        }
    return {"secretsType": "AccountKey", "key": account.tokens.account_key}


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
