"""The rights that cloudtrain needs, and read-only checks of those of user and job, by ARM's permissions and roles.

After "Azure role-based access control": a role grants its actions less its notActions, and actions
on data likewise.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from cloudtrain.checkup import Check, Question
from cloudtrain.planning.reference import ACR
from cloudtrain.providers.azure.section import AzureSection

if TYPE_CHECKING:
    from cloudtrain.planning.target import Target
    from cloudtrain.providers.azure.client import Workspace
    from cloudtrain.providers.azure.config import AzureConfig
    from cloudtrain.providers.azure.sdk import ResourceManager
    from cloudtrain.spec.model import JobSpec

ML_VERSION = "2024-10-01"
"""Version of the API of workspaces."""
ROLES_VERSION = "2022-04-01"
VAULTS_VERSION = "2024-11-01"
RESOURCES_VERSION = "2021-04-01"

WORKSPACES = "Microsoft.MachineLearningServices/workspaces"
BLOBS = "Microsoft.Storage/storageAccounts/blobServices/containers/blobs"
READ_BLOBS = f"{BLOBS}/read"
WRITE_BLOBS = f"{BLOBS}/write"

CALLED = (
    f"{WORKSPACES}/codes/versions/read",
    f"{WORKSPACES}/codes/versions/write",
    f"{WORKSPACES}/computes/read",
    f"{WORKSPACES}/datastores/read",
    f"{WORKSPACES}/environments/versions/read",
    f"{WORKSPACES}/environments/versions/write",
    f"{WORKSPACES}/experiments/runs/read",
    f"{WORKSPACES}/jobs/cancel/action",
    f"{WORKSPACES}/jobs/read",
    f"{WORKSPACES}/jobs/write",
)
"""Actions of submitting, following and stopping jobs."""

PULL = "Microsoft.ContainerRegistry/registries/pull/read"
SECRET = "Microsoft.KeyVault/vaults/secrets/getSecret/action"  # noqa: S105
_ROLES = {
    WRITE_BLOBS: "Storage Blob Data Contributor",
    PULL: "AcrPull",
    SECRET: "Key Vault Secrets User",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Account:
    """Workspace to check, and the job to check it for."""

    cloud: Workspace
    arm: ResourceManager
    config: AzureConfig
    target: Target
    spec: JobSpec
    user: str
    """Object id of the caller; empty if the token does not have it."""
    workspace: Mapping[str, Any]
    """Document of the workspace in ARM."""

    @property
    def scope(self) -> str:
        """Id of the workspace."""
        return workspace_id(self.config)

    @property
    def properties(self) -> Mapping[str, Any]:
        """Properties of the workspace: ids of storage account, key vault, registry and others."""
        properties: Mapping[str, Any] = self.workspace.get("properties") or {}
        return properties


def workspace_id(config: AzureConfig) -> str:
    """Return the id of the workspace in Azure Resource Manager."""
    group = f"/subscriptions/{config.subscription}/resourceGroups/{config.resource_group}"
    return f"{group}/providers/Microsoft.MachineLearningServices/workspaces/{config.workspace}"


def rights_checks(account: Account) -> Iterator[Check]:
    """Yield checks of the submit, then of storage, registry and key vault of the job."""
    yield _submitting(account)
    yield from _storage(account)
    if ACR.fullmatch(account.target.image_address.partition("/")[0]):
        yield _registry(account, account.target.image_address.partition("/")[0])
    for name in sorted(_vaults(account)):
        yield _vault(account, name)


def _submitting(account: Account) -> Check:
    question = Question(
        "submitting",
        "may you submit, follow and cancel jobs",
        ("azure", "workspace"),
    )

    def ask() -> Check:
        path = f"{account.scope}/providers/Microsoft.Authorization/permissions"
        granted = list(account.arm.listed(path, ROLES_VERSION))

        missing = [action for action in CALLED if not _allows(granted, action)]
        if missing:
            fix = (
                "the role AzureML Data Scientist: az role assignment create --assignee"
                f" {account.user or 'YOU'} "
            )
            fix += f"--role 'AzureML Data Scientist' --scope {account.scope}"
            return question.wrong(f"not allowed: {', '.join(missing)}", fix)

        return question.found("you may")

    return question.answered_by(ask)


def _storage(account: Account) -> Iterator[Check]:
    """Yield checks of the datastore, and of roles on its storage account unless it has a key."""
    name = account.config.datastore
    properties = {}
    question = Question(
        "datastore",
        f"is {name} there, and a blob container",
        ("azure", "datastore"),
    )

    def ask() -> Check:
        resource = account.arm.find(f"{account.scope}/datastores/{name}", ML_VERSION)
        if resource is None:
            return question.wrong(
                "there is no such datastore",
                "az ml datastore list shows those there are",
            )

        properties.update(resource.document["properties"])
        if properties["datastoreType"] != "AzureBlob":
            return question.wrong(
                f"it is of type {properties['datastoreType']}",
                "azure.datastore names one of type azure_blob",
            )

        return question.found(
            f"it is: {properties.get('containerName')} of {properties.get('accountName')}"
        )

    check = question.answered_by(ask)
    yield check
    if check.verdict != "found":
        return

    roles = Question(
        "storage",
        f"may you, and the job, read and write {name}",
        ("azure", "datastore"),
    )
    if (properties.get("credentials") or {}).get("credentialsType") not in (None, "None"):
        yield roles.answered_by(lambda: _storage_secret(account, roles))
        return

    yield roles.answered_by(
        lambda: _storage_roles(account, roles, str(properties.get("accountName")))
    )


def _storage_secret(account: Account, question: Question) -> Check:
    """Check that the storage account takes the secret that the workspace has for the datastore."""
    if account.cloud.container(account.config.datastore).takes_secret():
        return question.not_checked(
            "the workspace has a key for it, which opens it to all its jobs"
        )

    fix = (
        f"az ml workspace update --name {account.config.workspace} "
        f"--resource-group {account.config.resource_group} --system-datastores-auth-mode identity; "
        "register your own datastores again without credentials"
    )
    return question.wrong(
        "the storage account takes no keys, but the datastore has one: jobs fail",
        fix,
    )


def _storage_roles(account: Account, question: Question, name: str) -> Check:
    scope = _id_of(
        account,
        "Microsoft.Storage/storageAccounts",
        name,
        str(account.properties.get("storageAccount")),
    )
    if not scope:
        return question.not_checked(f"the storage account {name} is in another subscription")

    job, principal = _job_identity(account, account.spec.section(AzureSection).identity)
    who = {"you": account.user, job: principal}
    return _roles_check(account, question, scope, WRITE_BLOBS, who)


def _registry(account: Account, host: str) -> Check:
    question = Question("registry", f"may the job's machines pull from {host}", ("image",))

    def ask() -> Check:
        name = re.split(r"[.-]", host)[0]
        registry_id = str(account.properties.get("containerRegistry"))

        scope = _id_of(account, "Microsoft.ContainerRegistry/registries", name, registry_id)
        if not scope:
            return question.not_checked(
                f"{host} is not in this subscription, as far as you may see"
            )

        machines, principal = _machine_identity(account)
        return _roles_check(account, question, scope, PULL, {machines: principal})

    return question.answered_by(ask)


def _vaults(account: Account) -> set[str]:
    """Return the key vaults of the job's secrets, by name."""
    vaults = set()
    for stores in account.spec.secrets.values():
        place = stores.get(account.target.provider, "")
        if place and "://" not in place:
            vaults.add(place.removeprefix("keyvault:").partition("/")[0])

    return vaults


def _vault(account: Account, name: str) -> Check:
    question = Question("key vault", f"may the job read the secrets of {name}", ("secrets",))

    def ask() -> Check:
        scope = _id_of(
            account,
            "Microsoft.KeyVault/vaults",
            name,
            str(account.properties.get("keyVault")),
        )
        vault = None
        if scope:
            vault = account.arm.find(scope, VAULTS_VERSION)
        if vault is None:
            fix = (
                "look at its name: az keyvault list; in another subscription it cannot be seen from"
                " here"
            )
            return question.wrong(f"there is no key vault {name} in this subscription", fix)
        if not vault.document["properties"].get("enableRbacAuthorization"):
            return question.not_checked("it goes by access policies, which are not checked")

        identity = account.spec.section(AzureSection).identity or "managed"
        job, principal = _job_identity(account, identity)
        return _roles_check(account, question, scope, SECRET, {job: principal})

    return question.answered_by(ask)


def _roles_check(
    account: Account,
    question: Question,
    scope: str,
    action: str,
    who: Mapping[str, str],
) -> Check:
    """Check that each of these has a role there that allows an action.

    `who`: object ids, by what to call them.
    """
    for words, principal in who.items():
        if not principal:
            fix = f"give {words} an identity: az ml compute update --identity-type SystemAssigned"
            return question.wrong(f"{words} has no identity", fix)
        if not _allows(_roles(account, scope, principal), action):
            role = _ROLES[action]
            fix = (
                f"az role assignment create --assignee {principal} --role '{role}' --scope {scope}"
            )
            verb = "have" if words == "you" else "has"
            return question.wrong(f"{words} {verb} no role with {action}", fix)

    return question.found(f"yes: {' and '.join(who)}")


def _roles(account: Account, scope: str, principal: str) -> Iterator[Mapping[str, Any]]:
    """Yield what a principal's roles grant at a scope, also inherited ones and groups'."""
    path = f"{scope}/providers/Microsoft.Authorization/roleAssignments"
    assigned = account.arm.listed(path, ROLES_VERSION, filter=f"assignedTo('{principal}')")

    ids = [assignment["properties"]["roleDefinitionId"] for assignment in assigned]
    names = dict.fromkeys(role_id.rpartition("/")[2] for role_id in ids)
    # at this scope: the right to read roles here does not imply it further up
    for name in names:
        path = f"{scope}/providers/Microsoft.Authorization/roleDefinitions/{name}"
        yield from account.arm.get(path, ROLES_VERSION).document["properties"]["permissions"]


def _allows(permissions: Iterable[Mapping[str, Any]], action: str) -> bool:
    """Return True if any of these grants an action, of management or on data."""
    for permission in permissions:
        for yes, no in (("actions", "notActions"), ("dataActions", "notDataActions")):
            granted = _matches(permission.get(yes) or (), action)
            if granted and not _matches(permission.get(no) or (), action):
                return True

    return False


def _matches(patterns: Iterable[str], action: str) -> bool:
    """Return True if a pattern matches; an asterisk matches anything, in any case."""
    for pattern in patterns:
        expression = re.escape(pattern).replace(r"\*", ".*")
        if re.fullmatch(expression, action, re.IGNORECASE):
            return True

    return False


def _id_of(account: Account, kind: str, name: str, known_id: str) -> str:
    """Return the id of a resource: the workspace's own, or one of this name, or ""."""
    if known_id.lower().endswith(f"/{name.lower()}"):
        return known_id

    path = f"/subscriptions/{account.config.subscription}/resources"
    resources = account.arm.listed(
        path, RESOURCES_VERSION, filter=f"resourceType eq '{kind}' and name eq '{name}'"
    )
    first = next(resources, None)
    if first is None:
        return ""

    return str(first["id"])


def _machine_identity(account: Account) -> tuple[str, str]:
    """Return the identity that pulls images on the job's machines: a description, an object id.

    The id is empty without an identity. The cluster's identity comes first, then the workspace's
    ("Set up authentication between Azure Machine Learning and other services").
    """
    if account.config.compute:
        path = f"{account.scope}/computes/{account.config.compute}"
        resource = account.arm.find(path, ML_VERSION)
        principal = ""
        if resource:
            principal = _principal(resource.document)

        if principal:
            return f"the cluster {account.config.compute}", principal

    return f"the workspace {account.config.workspace}", _principal(account.workspace)


def _job_identity(account: Account, kind: str | None) -> tuple[str, str]:
    """Return the identity of a job that reads data or secrets.

    `kind`: `azure.identity`, or None.
    """
    if kind == "user" or (kind is None and not account.config.compute):
        # by default a serverless job acts as its submitter
        return "you", account.user

    return _machine_identity(account)


def _principal(resource: Mapping[str, Any]) -> str:
    """Return the object id of a resource's identity; user-assigned ones come first."""
    identity = resource.get("identity") or {}
    for entry in (identity.get("userAssignedIdentities") or {}).values():
        if entry.get("principalId"):
            return str(entry["principalId"])

    return str(identity.get("principalId") or "")
