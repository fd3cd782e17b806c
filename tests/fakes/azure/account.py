"""Shared parts of an imitated workspace: names, clusters, machines, quotas, storage, and timing."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.fakes.azure.rights import BUILT_IN, Access, Rights
from tests.fakes.azure.storage import Container, Storage
from tests.fakes.azure.tokens import CLIENT, OBJECT_ID, Tokens

DATASTORES = {
    "workspaceblobstore": "azureml-blobstore-loopback",
    "workspaceartifactstore": "azureml",
}
"""Datastore -> container. The first one is the workspace's default."""
ACCOUNT_FOLDER = "ds"
SUFFIX = "loop.local"
PROVIDER = "Microsoft.MachineLearningServices"
WORKSPACES = f"{PROVIDER}/workspaces"
WORKSPACE_ID = "8e7dad76-df37-472b-b882-0c1c58adfcf9"
CLUSTER_IDENTITY = "cccccccc-0000-0000-0000-000000000001"
WORKSPACE_IDENTITY = "cccccccc-0000-0000-0000-000000000002"
VAULT = "loopback-vault"
REGISTRY = "loopbackacr"
DEDICATED = "dedicatedCores"
LOW_PRIORITY = "lowPriorityCores"
"""The totals of a region: of all machines at the normal price, and of all at low priority."""
LARGE_QUOTA = 100_000
"""Limit of a quota that a test does not set, in vCPUs."""


@dataclass(kw_only=True)
class Cluster:
    """An AmlCompute cluster."""

    vm_size: str = "Standard_NC24ads_A100_v4"
    max_nodes: int = 4
    low_priority: bool = False
    state: str = "Succeeded"
    """Its provisioning state. Nothing but Succeeded takes jobs."""
    identity: str = CLUSTER_IDENTITY
    """The object id of what its machines act as; empty for nothing."""
    client: str = ""
    """The client id of that identity, if it is assigned by users."""


@dataclass(frozen=True, kw_only=True)
class VmSize:
    """A kind of machine."""

    family: str
    """As the API names it: standardDSv2Family."""
    vcpus: int
    gpus: int = 0

    @property
    def family_words(self) -> str:
        """Return a family as people write it: Standard DSv2."""
        return f"Standard {self.family.removeprefix('standard').removesuffix('Family')}"


def _vm_sizes() -> dict[str, VmSize]:
    a100 = "standardNCADSA100v4Family"
    large_a100 = "standardNDAMSv4_A100Family"
    h100 = "standardNDSH100v5Family"
    return {
        "Standard_DS3_v2": VmSize(family="standardDSv2Family", vcpus=4),
        "Standard_NC4as_T4_v3": VmSize(family="standardNCASv3_T4Family", vcpus=4, gpus=1),
        "Standard_NC24ads_A100_v4": VmSize(family=a100, vcpus=24, gpus=1),
        "Standard_ND96amsr_A100_v4": VmSize(family=large_a100, vcpus=96, gpus=8),
        "Standard_ND96isr_H100_v5": VmSize(family=h100, vcpus=96, gpus=8),
    }


def _computes() -> dict[str, Cluster]:
    return {
        "gpu-cluster": Cluster(),
        "cpu-cluster": Cluster(vm_size="Standard_DS3_v2"),
    }


@dataclass(kw_only=True)
class Account:
    """Tests set some of it while jobs run; it is read each time it matters."""

    folder: Path
    """The folder of blob containers and of nodes."""
    storage: Storage
    tokens: Tokens
    subscription: str = "11111111-2222-3333-4444-555555555555"
    tenant: str = "99999999-8888-7777-6666-555555555555"
    resource_group: str = "loopback-rg"
    workspace: str = "loopback-ws"
    user: str = CLIENT
    """Who submits: ARM writes it down with each job (systemData.createdBy), and gives it to
    everybody who asks.
    """
    submitter: str = OBJECT_ID
    """The object id of who submits."""
    location: str = "eastus"
    url: str = ""
    """The one address of everything."""
    env: Mapping[str, str] = field(default_factory=dict)
    """Variables that the platform adds to every process of a job."""
    phase_seconds: float = 0.02
    """Length of each idle phase of a job."""
    tells_parameters: bool = True
    """True if the trials of a sweep job list their values in `parameters` before they log any."""
    computes: dict[str, Cluster] = field(default_factory=_computes)
    vm_sizes: dict[str, VmSize] = field(default_factory=_vm_sizes)
    quotas: dict[str, int] = field(default_factory=dict)
    """VM family, `DEDICATED` or `LOW_PRIORITY` -> number of vCPUs that may be used at once.

    `Account.limit_of` has a limit for all others.
    """
    curated: dict[str, dict[str, str]] = field(
        default_factory=lambda: {
            "AzureML-acpt-pytorch-2.8-cuda12.6": {
                "3": "mcr.microsoft.com/azureml/curated/acpt-pytorch-2.8-cuda12.6:3",
                "12": "mcr.microsoft.com/azureml/curated/acpt-pytorch-2.8-cuda12.6:12",
            }
        }
    )
    """The environments that every workspace has: name -> version -> image, the newest last."""
    data: dict[tuple[str, str], str] = field(default_factory=dict)
    """Data assets: name and version -> address."""
    secrets: dict[str, str] = field(default_factory=dict)
    """Contents of the Key Vault."""
    access: Access = field(default_factory=lambda: Access(roles=dict(BUILT_IN)))
    """Roles and their assignments: enforced after `tests.support.azure_template.deploy`, or if a
    test sets it.
    """
    rights: Rights = field(default_factory=Rights)
    """Other resources that Resource Manager lists."""
    parts: dict[str, str] = field(default_factory=dict)
    """Ids of a deployed workspace's parts: storageAccount, keyVault, containerRegistry; its
    `identity`, and `jobsVault`, the vault whose secrets this imitation serves.
    """
    takes_keys: bool = True
    """True if the account's key, and signatures made with it, open the storage."""
    home_tenant: str = ""
    """The tenant of the subscription, if it is not the one that issues tokens here."""
    policy: str = ""
    """Azure Policy that forbids jobs, by the name of its assignment."""
    is_private: bool = False
    """True if the workspace answers to its private network alone."""
    storage_is_private: bool = False
    """True if the firewall of the storage account keeps this machine out."""
    throttled: dict[str, int] = field(default_factory=dict)
    """Operation -> how many calls of it are still refused as too many."""
    retry_after: int = 0
    """Seconds that these refusals ask to wait."""
    secret_seconds: float = 3600
    """How long the secret of a datastore opens it."""
    machine_secrets: dict[str, str] = field(default_factory=dict)
    """Secret that a job's machine exchanges for a token -> the object id of its identity."""
    datastore_credentials: str = "AccountKey"
    """Credential of the workspace for its datastores; `None`: the caller's identity."""
    workspace_state: str = "Succeeded"
    """Its provisioning state."""
    blob_page: int = 5000
    """How many blobs a page has at most."""
    keeps_deleted: bool = False
    """True if storage has soft delete."""
    created: float = field(default_factory=time.time)
    """Unix timestamp of the workspace's creation."""
    closing: threading.Event = field(default_factory=threading.Event)
    """The whole imitation is being taken down: jobs end by force."""
    unexpected_errors: list[str] = field(default_factory=list)
    """Tracebacks of the imitation's own mistakes; a test that leaves one here has found one."""

    def limit_of(self, quota: str) -> int:
        """How many vCPUs of a quota may be used at once."""
        return self.quotas.get(quota, LARGE_QUOTA)

    @property
    def scope(self) -> str:
        """The workspace's ARM id."""
        group = f"/subscriptions/{self.subscription}/resourceGroups/{self.resource_group}"
        return f"{group}/providers/{PROVIDER}/workspaces/{self.workspace}"

    def resource(self, kind: str, name: str) -> str:
        """The ARM id of another resource of the same group: `Microsoft.KeyVault/vaults`."""
        return f"/subscriptions/{self.subscription}/resourceGroups/{self.resource_group}/providers/{kind}/{name}"

    def part(self, name: str) -> str:
        """The id of something that the workspace is made of."""
        kinds = {
            "storageAccount": ("Microsoft.Storage/storageAccounts", self.storage_account),
            "keyVault": ("Microsoft.KeyVault/vaults", VAULT),
            "jobsVault": ("Microsoft.KeyVault/vaults", VAULT),
            "containerRegistry": ("Microsoft.ContainerRegistry/registries", REGISTRY),
        }
        return self.parts.get(name) or self.resource(*kinds[name])

    def real(self, scope: str) -> str:
        """An id whose storage account, if it is about one, has the name that it was deployed by:
        here clients know it by a part of its address.
        """
        storage = self.resource("Microsoft.Storage/storageAccounts", self.storage_account)
        return (
            f"{self.part('storageAccount')}{scope[len(storage) :]}"
            if scope.lower().startswith(storage.lower())
            else scope
        )

    def identities_of(self, properties: Mapping[str, Any]) -> tuple[str, str]:
        """Return the object ids of two identities: one pulls a job's image, one reads and writes.

        After "Set up authentication between Azure Machine Learning and other services". The
        submitter of all jobs here is the one user.
        """
        cluster = self.computes.get(str(properties.get("computeId", "")).rpartition("/")[2])
        machines = cluster.identity if cluster else self.parts.get("identity", WORKSPACE_IDENTITY)
        kind = (properties.get("identity") or {}).get("identityType", "")
        is_user = kind == "UserIdentity" or (cluster is None and kind != "Managed")
        return machines, self.submitter if is_user else machines

    def machine_secret(self, identity: str) -> str:
        """Return the secret that gives a machine of this identity its token."""
        secret = uuid.uuid4().hex
        self.machine_secrets[secret] = identity
        return secret

    @property
    def storage_account(self) -> str:
        """Return a name that leads clients to a loopback address with the account as the first
        folder.
        """
        return f"{self.url.partition('://')[2]}/{ACCOUNT_FOLDER}"

    @property
    def blob_url(self) -> str:
        """Return the first part of every container's address."""
        return f"https://{self.storage_account}.blob.{SUFFIX}"

    def datastore(self, name: str) -> Container | None:
        """The container of a datastore, if there is such a datastore."""
        return self.storage.container(DATASTORES[name]) if name in DATASTORES else None

    def sas_url(self, container: str, blob: str = "", permissions: str = "r") -> str:
        """An address that needs no credentials."""
        return f"{self.blob_url}/{container}{'/' if blob else ''}{blob}?{self.tokens.sas(container, blob, permissions)}"
