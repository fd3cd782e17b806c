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
    WORKSPACE_ID,
    WORKSPACE_IDENTITY,
    WORKSPACES,
    Account,
)
from tests.fakes.azure.jobs import Job
from tests.fakes.azure.permissions import user_error
from tests.fakes.azure.recorded import Form, form
from tests.fakes.azure.request_rules import vcpus_used
from tests.fakes.azure.tokens import CLIENT
from tests.fakes.azure.wire import DISCOVERY, iso_date

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
        # Recorded clusters have none; role assignments of this imitation need one.
        "identity": {
            "type": "SystemAssigned",
            "tenantId": account.tenant,
            "principalId": cluster.identity,
        },
        "properties": Form({}, compute_form.answered).filled(values),
    }


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
