"""The things that a command job names, as Azure Resource Manager has them, and who may use them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from cloudtrain.checkup import Check, Question
from cloudtrain.errors import CloudError, Keys, RefusedError
from cloudtrain.providers.azure.config import AzureConfig
from cloudtrain.providers.azure.rights import missing, role_for

if TYPE_CHECKING:
    from cloudtrain.planning.plan import Plan
    from cloudtrain.providers.azure.client import Workspace
    from cloudtrain.providers.azure.sdk import ResourceManager

ML_VERSION = "2024-10-01"
"""Version of the API of workspaces."""
ROLES_VERSION = "2022-04-01"
RESOURCES_VERSION = "2021-04-01"

NOT_FOUND = ("NotFound", "NoWorkspace")
"""Codes of a call about something that is not there."""

STORAGE = "Microsoft.Storage/storageAccounts"
REGISTRY = "Microsoft.ContainerRegistry/registries"
VAULT = "Microsoft.KeyVault/vaults"

VERSIONS = {STORAGE: "2024-01-01", REGISTRY: "2023-07-01", VAULT: "2024-11-01"}
Resource = Mapping[str, Any]


class NotCheckedError(Exception):
    """No call that this caller may make tells the answer. The message is the reason."""


class Identity(NamedTuple):
    """Whom calls come from: the caller, or a managed identity."""

    words: str
    """`you`, `the cluster gpu-cluster`."""
    principal: str
    """Object id; empty if there is none."""


@dataclass(kw_only=True, slots=True)
class Things:
    """A plan's request, the workspace to ask for its things, and the answers until now."""

    cloud: Workspace
    arm: ResourceManager
    plan: Plan
    caller: Identity
    workspace: Resource = field(default_factory=dict)
    """Document of the workspace in ARM."""
    date: str = ""
    """Header `Date` of its answer."""
    compute: Resource = field(default_factory=dict)
    """Document of the cluster; empty for serverless machines, and for one that was not found."""
    job: Identity | None = None
    """Identity that reads and writes data; None if it is missing."""
    read: set[str] = field(default_factory=set)
    """Datastores of inputs."""
    uses: set[str] = field(default_factory=set)
    """Uses in the list of rights of people that the job has."""

    @property
    def config(self) -> AzureConfig:
        """Settings of the workspace."""
        return self.plan.target.config_as(AzureConfig)

    @property
    def scope(self) -> str:
        """Id of the workspace in Azure Resource Manager."""
        config = self.config
        group = f"/subscriptions/{config.subscription}/resourceGroups/{config.resource_group}"
        return f"{group}/providers/Microsoft.MachineLearningServices/workspaces/{config.workspace}"

    def ask(
        self, name: str, question: str, setting: Keys, answer: Callable[..., str], *more: Any
    ) -> Check:
        """Return the check of a thing. `answer`: returns how it was found, or raises why it was not.

        It gets these things, and more.
        """
        asked = Question(name, question, setting)
        try:
            return asked.found(answer(self, *more))
        except NotCheckedError as error:
            return asked.not_checked(str(error))
        except RefusedError as error:
            return asked.wrong(error.what, error.hint or "")
        except CloudError as error:
            if error.code in NOT_FOUND:
                return asked.wrong(error.what, error.hint or "look at its name")
            return asked.failed(error)

    def identity(self, wanted: Iterable[str] = (), *, of_job: bool = False) -> Identity:
        """Return the identity of the machines: the cluster's, or else the workspace's.

        After "Set up authentication between Azure Machine Learning and other services". `wanted`:
        ids of one among several. `of_job`: a job on a cluster has the cluster's alone.
        """
        owners = {f"the workspace {self.config.workspace}": self.workspace}
        if compute := self.config.compute:
            if not self.compute:
                raise NotCheckedError(f"the cluster {compute} was not found")
            cluster = {f"the cluster {compute}": self.compute}
            owners = cluster if of_job else cluster | owners

        ids = {value.lower() for value in wanted}
        for owner, document in owners.items():
            identity = document.get("identity") or {}
            entries = {**(identity.get("userAssignedIdentities") or {}), "": identity}
            for name, entry in entries.items():
                principal = str(entry.get("principalId") or "")
                known = {name, principal, str(entry.get("clientId"))}
                if principal and ids <= {value.lower() for value in known}:
                    return Identity(owner, principal)

        fix = "az ml compute update --identity-type UserAssigned --user-assigned-identities ID"
        message = f"{next(iter(owners))} has no identity {', '.join(ids)}"
        raise RefusedError(message, hint=fix)

    def resource(self, kind: str, name: str, known_id: str = "") -> Resource:
        """Return a resource beside the workspace: by this id, or one of the subscription."""
        ids = [known_id]
        if not known_id.lower().endswith(f"{kind}/{name}".lower()):
            path = f"/subscriptions/{self.config.subscription}/resources"
            query = f"resourceType eq '{kind}' and name eq '{name}'"
            listed = self.arm.listed(path, RESOURCES_VERSION, filter=query)
            ids = [str(resource["id"]) for resource in listed]
        if not ids:
            raise NotCheckedError(f"{name} is not in this subscription, as far as you may see")

        return {**self.arm.get(ids[0], VERSIONS[kind]).document, "id": ids[0]}

    def require(self, who: Identity | None, scope: str, actions: Iterable[str]) -> str:
        """Return who may do all of this with a resource, by the roles there.

        Raise RefusedError for one who may not.
        """
        if who is None:
            raise NotCheckedError("it is not known whom the job acts as")

        granted, conditional = self._permissions(who, scope)
        lacking = missing(granted, actions)
        if not lacking:
            return who.words
        if not missing(conditional, lacking):
            raise NotCheckedError(f"a role of {who.words} has a condition, which no call evaluates")

        fix = f"az role assignment create --assignee {who.principal or 'YOU'}"
        raise RefusedError(
            f"no role there gives {who.words} {', '.join(lacking)}",
            hint=f"{fix} --role '{role_for(lacking[-1])}' --scope {scope}",
        )

    def _permissions(self, who: Identity, scope: str) -> tuple[list[Resource], list[Resource]]:
        """Return what somebody is granted at a scope, inherited and by groups too.

        Grants of roles with a condition come second.
        """
        authorization = f"{scope}/providers/Microsoft.Authorization"
        if who is self.caller:
            return list(self.arm.listed(f"{authorization}/permissions", ROLES_VERSION)), []

        granted: list[Resource] = []
        conditional: list[Resource] = []
        path = f"{authorization}/roleAssignments"
        query = f"assignedTo('{who.principal}')"
        for assignment in self.arm.listed(path, ROLES_VERSION, filter=query):
            properties = assignment["properties"]
            # at this scope: the right to read roles here does not imply it further up
            name = properties["roleDefinitionId"].rpartition("/")[2]
            role = self.arm.get(f"{authorization}/roleDefinitions/{name}", ROLES_VERSION)
            kept = conditional if properties.get("condition") else granted
            kept += role.document["properties"]["permissions"]

        return granted, conditional
