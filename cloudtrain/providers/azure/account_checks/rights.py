"""What the user and the job's identity are allowed: permissions and role assignments, as ARM lists
them.

After "Azure role-based access control": a role grants its actions less its notActions, and actions
on data likewise.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from cloudtrain.checkup import Check, Question
from cloudtrain.planning.reference import ACR
from cloudtrain.providers.azure.account_checks import ML_VERSION, Account
from cloudtrain.providers.azure.account_checks.identity import job_identity, machine_identity
from cloudtrain.providers.azure.permissions import SUBMITTER, WORKSPACES, WRITE_BLOBS
from cloudtrain.providers.azure.section import AzureSection

ROLES_VERSION = "2022-04-01"
VAULTS_VERSION = "2024-11-01"
RESOURCES_VERSION = "2021-04-01"
SUBMIT = tuple(
    each.action
    for each in SUBMITTER
    if each.action.startswith(f"{WORKSPACES}/")
    and not each.implied_by
    and each.action != f"{WORKSPACES}/read"
)
"""The actions of a submit and of what follows a run; who got here has read the workspace."""

PULL = "Microsoft.ContainerRegistry/registries/pull/read"
SECRET = "Microsoft.KeyVault/vaults/secrets/getSecret/action"  # noqa: S105
_ROLES = {
    WRITE_BLOBS: "Storage Blob Data Contributor",
    PULL: "AcrPull",
    SECRET: "Key Vault Secrets User",
}


def rights_checks(account: Account) -> Iterator[Check]:
    """What a submit does; then storage, registry and key vault, where the job's identity is asked
    for them.
    """
    yield _submitting(account)
    yield from _storage(account)
    if ACR.fullmatch(account.target.image_address.partition("/")[0]):
        yield _registry(account, account.target.image_address.partition("/")[0])
    for name in sorted(_vaults(account)):
        yield _vault(account, name)


def _submitting(account: Account) -> Check:
    asked = Question("submitting", "may you submit, follow and cancel jobs", ("azure", "workspace"))

    def ask() -> Check:
        path = f"{account.scope}/providers/Microsoft.Authorization/permissions"
        granted = list(account.arm.listed(path, ROLES_VERSION))
        missing = [action for action in SUBMIT if not _allows(granted, action)]
        if missing:
            fix = (
                "the role AzureML Data Scientist: az role assignment create --assignee"
                f" {account.user or 'YOU'} "
            )
            fix += f"--role 'AzureML Data Scientist' --scope {account.scope}"
            return asked.wrong(f"not allowed: {', '.join(missing)}", fix)
        return asked.ok("you may")

    return asked.answered_by(ask)


def _storage(account: Account) -> Iterator[Check]:
    """The datastore; and the roles on its storage account, where it is not opened by a key."""
    name = account.config.datastore
    found = {}
    asked = Question("datastore", f"is {name} there, and a blob container", ("azure", "datastore"))

    def ask() -> Check:
        resource = account.arm.find(f"{account.scope}/datastores/{name}", ML_VERSION)
        if resource is None:
            return asked.wrong(
                "there is no such datastore", "az ml datastore list shows those there are"
            )
        found.update(resource.document["properties"])
        if found["datastoreType"] != "AzureBlob":
            return asked.wrong(
                f"it is of type {found['datastoreType']}",
                "azure.datastore names one of type azure_blob",
            )
        return asked.ok(f"it is: {found.get('containerName')} of {found.get('accountName')}")

    check = asked.answered_by(ask)
    yield check
    if check.verdict != "ok":
        return
    roles = Question(
        "storage", f"may you, and the job, read and write {name}", ("azure", "datastore")
    )
    if (found.get("credentials") or {}).get("credentialsType") not in (None, "None"):
        yield roles.answered_by(lambda: _storage_secret(account, roles))
        return
    yield roles.answered_by(lambda: _storage_roles(account, roles, str(found.get("accountName"))))


def _storage_secret(account: Account, asked: Question) -> Check:
    """Check that the storage account takes the secret that the workspace has for the datastore."""
    if account.cloud.container(account.config.datastore).takes_secret():
        return asked.not_applicable(
            "the workspace has a key for it, which opens it to all its jobs"
        )
    fix = (
        f"az ml workspace update --name {account.config.workspace} "
        f"--resource-group {account.config.resource_group} --system-datastores-auth-mode identity; "
        "register a datastore of your own again without credentials"
    )
    return asked.wrong(
        "the storage account takes no keys, but the datastore has one: jobs fail", fix
    )


def _storage_roles(account: Account, asked: Question, name: str) -> Check:
    scope = _id_of(
        account,
        "Microsoft.Storage/storageAccounts",
        name,
        str(account.properties.get("storageAccount")),
    )
    if not scope:
        return asked.not_applicable(f"the storage account {name} is in another subscription")
    who = {
        "you": account.user,
        **dict([job_identity(account, account.spec.section(AzureSection).identity)]),
    }
    return _roles_check(account, asked, scope, WRITE_BLOBS, who)


def _registry(account: Account, host: str) -> Check:
    asked = Question("registry", f"may the job's machines pull from {host}", ("image",))

    def ask() -> Check:
        name = re.split(r"[.-]", host)[0]
        own = str(account.properties.get("containerRegistry"))
        scope = _id_of(account, "Microsoft.ContainerRegistry/registries", name, own)
        if not scope:
            return asked.not_applicable(
                f"{host} is not in this subscription, as far as you may see"
            )
        return _roles_check(account, asked, scope, PULL, dict([machine_identity(account)]))

    return asked.answered_by(ask)


def _vaults(account: Account) -> set[str]:
    """The key vaults of the job's secrets, by name."""
    stored = [places.get(account.target.provider, "") for places in account.spec.secrets.values()]
    return {
        place.removeprefix("keyvault:").partition("/")[0]
        for place in stored
        if place and "://" not in place
    }


def _vault(account: Account, name: str) -> Check:
    asked = Question("key vault", f"may the job read the secrets of {name}", ("secrets",))

    def ask() -> Check:
        scope = _id_of(
            account, "Microsoft.KeyVault/vaults", name, str(account.properties.get("keyVault"))
        )
        found = account.arm.find(scope, VAULTS_VERSION) if scope else None
        if found is None:
            fix = (
                "look at its name: az keyvault list; in another subscription it cannot be seen from"
                " here"
            )
            return asked.wrong(f"there is no key vault {name} in this subscription", fix)
        who = dict(
            [job_identity(account, account.spec.section(AzureSection).identity or "managed")]
        )
        if found.document["properties"].get("enableRbacAuthorization"):
            return _roles_check(account, asked, scope, SECRET, who)
        return _policies_check(
            asked, found.document["properties"].get("accessPolicies") or (), who, name
        )

    return asked.answered_by(ask)


def _policies_check(
    asked: Question, policies: Iterable[Mapping[str, Any]], who: Mapping[str, str], name: str
) -> Check:
    """By access policies, which vaults have that do without roles."""
    for words, principal in who.items():
        rights = [
            each["permissions"].get("secrets") or ()
            for each in policies
            if each["objectId"] == principal
        ]
        if not any(str(right).lower() in ("get", "all") for each in rights for right in each):
            fix = (
                f"az keyvault set-policy --name {name} --object-id {principal or 'ID'}"
                " --secret-permissions get"
            )
            return asked.wrong(f"no access policy lets {words} read them", fix)
    return asked.ok("yes, by an access policy")


def _roles_check(
    account: Account, asked: Question, scope: str, action: str, who: Mapping[str, str]
) -> Check:
    """Check that each of these has a role there that allows an action. `who`: object ids, by what to
    call them.
    """
    for words, principal in who.items():
        if not principal:
            fix = f"give {words} an identity: az ml compute update --identity-type SystemAssigned"
            return asked.wrong(f"{words} has no identity", fix)
        if not _allows(_roles(account, scope, principal), action):
            role = _ROLES[action]
            fix = (
                f"az role assignment create --assignee {principal} --role '{role}' --scope {scope}"
            )
            return asked.wrong(
                f"{words} {'have' if words == 'you' else 'has'} no role with {action}", fix
            )
    return asked.ok(f"yes: {' and '.join(who)}")


def _roles(account: Account, scope: str, principal: str) -> Iterator[Mapping[str, Any]]:
    """What the roles of a principal grant at a scope, those that it has further up or by a group
    included.
    """
    path = f"{scope}/providers/Microsoft.Authorization/roleAssignments"
    assigned = account.arm.listed(path, ROLES_VERSION, filter=f"assignedTo('{principal}')")
    names = dict.fromkeys(
        each["properties"]["roleDefinitionId"].rpartition("/")[2] for each in assigned
    )
    for name in (
        names
    ):  # at this scope, since who may look at roles there need not be allowed to look further up
        path = f"{scope}/providers/Microsoft.Authorization/roleDefinitions/{name}"
        yield from account.arm.get(path, ROLES_VERSION).document["properties"]["permissions"]


def _allows(granted: Iterable[Mapping[str, Any]], action: str) -> bool:
    """Return True if any of these grants an action: as one of management, or as one on data."""
    for each in granted:
        for yes, no in (("actions", "notActions"), ("dataActions", "notDataActions")):
            if _matches(each.get(yes) or (), action) and not _matches(each.get(no) or (), action):
                return True
    return False


def _matches(patterns: Iterable[str], action: str) -> bool:
    """An asterisk stands for anything, slashes too; capitals make no difference."""
    return any(
        re.fullmatch(re.escape(each).replace(r"\*", ".*"), action, re.IGNORECASE)
        for each in patterns
    )


def _id_of(account: Account, kind: str, name: str, known: str) -> str:
    """The id of a resource: the workspace's own, or else one of this name in the subscription;
    empty for none.
    """
    if known.lower().endswith(f"/{name.lower()}"):
        return known
    path = f"/subscriptions/{account.config.subscription}/resources"
    found = account.arm.listed(
        path, RESOURCES_VERSION, filter=f"resourceType eq '{kind}' and name eq '{name}'"
    )
    return next((str(each["id"]) for each in found), "")
