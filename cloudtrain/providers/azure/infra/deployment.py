"""The deployment of an Azure account: planned by what-if, carried out by Resource Manager, shown
and removed.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any

from cloudtrain.errors import DENIED, CloudError, UsageError
from cloudtrain.infrastructure import Infrastructure, Report
from cloudtrain.infrastructure.changes import (
    ChangePlan,
    Deployment,
    DeploymentState,
    Resource,
    ResourceEvent,
)
from cloudtrain.infrastructure.parameters import defaults
from cloudtrain.providers.azure.account import cli_default_account
from cloudtrain.providers.azure.declaration import DECLARATION
from cloudtrain.providers.azure.infra import kinds, removal
from cloudtrain.providers.azure.infra.changes import predicted_changes, unpredictable
from cloudtrain.providers.azure.infra.failures import explained, failures_of, root_failures
from cloudtrain.providers.azure.infra.parameters import (
    ME,
    PARAMETERS,
    chosen_values,
    first_of_month,
    resolved,
    template_parameters,
)
from cloudtrain.providers.azure.infra.watch import Steps

if TYPE_CHECKING:
    from cloudtrain.providers.azure.infra.client import ResourceGroup
    from cloudtrain.settings import Settings

NAME = r"[a-z](?!.*--)[a-z0-9-]{1,14}[a-z0-9]"
"""Names of everything else begin with the deployment's."""

_STATES: Mapping[str, DeploymentState] = {
    "Succeeded": "ready",
    "Failed": "failed",
    "Canceled": "failed",
}
_TOLD = {"vault": "key vault", "github_client_id": "client id for GitHub"}
"""Outputs of the template that are no settings -> what people are told that they are."""


class AzureInfrastructure(Infrastructure):
    """One deployment: a resource group with a workspace of the deployment's name, and all that it
    needs.
    """

    parameters = PARAMETERS
    formats = ("arm",)

    def __init__(self, settings: Settings, name: str, region: str) -> None:
        """`region`: empty for that of the settings. Nothing is asked, so that the template needs no
        account.
        """
        self.name = name
        self._settings = settings
        self._region = region

    def plan_up(self, values: Mapping[str, str]) -> ChangePlan:
        """See `Infrastructure.plan_up`. A resource group that does not exist is created, empty, to
        ask Azure in it.
        """
        known = self._group.deployment(self.name) or {}
        there = {
            key: each["value"]
            for key, each in (known.get("parameters") or {}).items()
            if "value" in each
        }
        chosen = {**defaults(PARAMETERS), **chosen_values(there), **values}
        if ME in chosen["submitters"].split(","):
            chosen = resolved(chosen, self._group.me())
        found = self._group.location()
        location = self._location(there.get("location") or found)
        if found is None:
            self._group.create(location, {kinds.TAG: self.name})
        document = self._document(chosen, location)
        try:
            predicted = self._group.what_if(self.name, document)
        except BaseException:
            if found is None:
                self._group.delete_if_empty()
            raise
        notes = unpredictable(predicted)
        if known.get("provisioningState") in ("Running", "Accepted"):
            notes.append("a deployment is under way: infra up waits for it first")
        if found is None:
            notes.append(
                f"the resource group {self._group.name} was created to ask Azure; it is empty and"
                " costs nothing"
            )
        return ChangePlan(
            provider=DECLARATION.name,
            name=self.name,
            where=self._where(location),
            changes=predicted_changes(predicted),
            parameters=chosen,
            notes=tuple(notes),
            reference={"document": document, "group_is_new": found is None},
        )

    def up(self, plan: ChangePlan, report: Report) -> Deployment:
        """See `Infrastructure.up`. A deployment that is under way is waited for, then this one
        begins.
        """
        if not plan.is_empty:
            self._watch(Steps(plan, report), raising=False)
            self._group.deploy(self.name, plan.reference["document"])
            self._watch(Steps(plan, report), raising=True)
        return self.show()

    def discard(self, plan: ChangePlan) -> None:
        """Delete the resource group that was created for a plan, if nothing is in it."""
        if plan.reference.get("group_is_new"):
            self._group.delete_if_empty()

    def show(self) -> Deployment:
        """See `Infrastructure.show`: Azure's record of the deployment, and the resources that bear
        its tag.
        """
        known = self._group.deployment(self.name)
        found = removal.existing(self._group, self.name) if self._group.location() else []
        state: DeploymentState = "absent"
        if known is not None:
            state = _STATES.get(known["provisioningState"], "changing")
        told = {
            key: str(each["value"]) for key, each in ((known or {}).get("outputs") or {}).items()
        }
        there = {
            key: each.get("value") for key, each in ((known or {}).get("parameters") or {}).items()
        }
        failures = root_failures((known or {}).get("error") or {}) if state == "failed" else ()
        return Deployment(
            provider=DECLARATION.name,
            name=self.name,
            where=self._where(str(there.get("location") or self._region or "")),
            state=state,
            reason="; ".join(each.message for each in failures),
            resources=tuple(
                Resource(
                    name=kinds.name_of(each.id),
                    kind=kinds.words_of(each.type),
                    identity=kinds.name_of(each.id),
                    state=each.state,
                )
                for each in found
            ),
            parameters=chosen_values(there),
            outputs={_TOLD[key]: value for key, value in told.items() if key in _TOLD},
            settings={
                f"{DECLARATION.name}.{key}": value
                for key, value in told.items()
                if key in DECLARATION.settings and value
            },
        )

    def plan_down(self, *, delete_data: bool) -> ChangePlan:
        """See `Infrastructure.plan_down`. Only what bears the deployment's tag is touched, and
        never the group.
        """
        found = removal.existing(self._group, self.name) if self._group.location() else []
        reasons = {} if delete_data else removal.kept(found, self.name)
        going = [each for each in found if each.type == kinds.IDENTITY and each.id not in reasons]
        roles = removal.role_assignments(self._group, self.name, going)
        own = removal.own_roles(self._group, self.name) if found else []
        ordered = removal.in_order(
            [*{each.id.lower(): each for each in (*own, *roles, *found)}.values()]
        )
        changes = tuple(removal.removal(each, reasons.get(each.id, "")) for each in ordered)
        deletions = [each for each in ordered if each.id not in reasons]
        return ChangePlan(
            provider=DECLARATION.name,
            name=self.name,
            where=self._where(""),
            changes=changes,
            notes=(
                tuple(removal.notes(changes, self._group.name, delete_data=delete_data))
                if deletions
                else ()
            ),
            reference={"delete": deletions, "delete_data": delete_data},
        )

    def down(self, plan: ChangePlan, report: Report) -> None:
        """See `Infrastructure.down`. Azure's record of the deployment is deleted last."""
        for each in plan.reference["delete"]:
            kind = kinds.words_of(each.type)
            name = each.shown or kinds.name_of(each.id)
            report(ResourceEvent(resource=name, kind=kind, state="deleting"))
            query = removal.delete_query(each, delete_data=plan.reference["delete_data"])
            self._group.delete(each.id, kinds.api_versions()[each.type], query)
            report(ResourceEvent(resource=name, kind=kind, state="deleted"))
        if self._group.deployment(self.name) is not None:
            self._group.forget_deployment(self.name)

    def template(self, format_: str) -> str:  # noqa: ARG002  (there is one)
        """The template as it lies in `infra/azure/`."""
        return kinds.template_text()

    def _watch(self, steps: Steps, *, raising: bool) -> None:
        """Report what a deployment does until it has ended. `raising`: CloudError if it failed."""
        while (known := self._group.deployment(self.name)) is not None:
            state = known["provisioningState"]
            is_over = state in _STATES
            if is_over and not raising:
                return
            operations = self._group.operations(self.name)
            steps.tell(operations)
            if is_over and state != "Succeeded":
                failures = failures_of(operations) or root_failures(known.get("error") or {})
                raise explained(failures, f"setting up {self.name} in {self._group.name}")
            if is_over:
                return
            time.sleep(self._settings["azure.poll"])

    def _document(self, chosen: Mapping[str, str], location: str) -> dict[str, Any]:
        """What Resource Manager is sent: the template and all its parameters."""
        group = self._group.id
        budget = self._group.get(
            f"{group}/providers/{kinds.BUDGET}/{self.name}", kinds.api_versions()[kinds.BUDGET]
        )
        start = (
            ((budget or {}).get("properties") or {}).get("timePeriod", {}).get("startDate", "")[:10]
        )
        values = {
            **template_parameters(chosen),
            "name": self.name,
            "location": location,
            "budgetStart": start or first_of_month(),
            "vaultMode": "recover" if self._vault_is_deleted() else "default",
        }
        parameters = {name: {"value": value} for name, value in values.items()}
        return {"mode": "Incremental", "template": kinds.template(), "parameters": parameters}

    def _vault_is_deleted(self) -> bool:
        """Whether Azure keeps a deleted key vault of this deployment, whose name a new one could
        not have.
        """
        collection = (
            f"/subscriptions/{self._group.subscription}/providers/Microsoft.KeyVault/deletedVaults"
        )
        try:
            deleted = self._group.list(collection, kinds.api_versions()[kinds.VAULT])
        except CloudError as error:
            if error.code == DENIED:
                # it is read in the whole subscription; if there is one, the deployment says so
                return False
            raise
        start = f"{self._group.id}/providers/{kinds.VAULT}/".lower()
        return any(
            str((each.get("properties") or {}).get("vaultId", "")).lower().startswith(start)
            and ((each["properties"].get("tags") or {}).get(kinds.TAG)) == self.name
            for each in deleted
        )

    def _location(self, there: str | None) -> str:
        """`--region`, else where the deployment is, else the setting, the group's or that of the
        Azure CLI.
        """
        chosen = self._region or there or self._settings.get("azure.location")
        default = cli_default_account().get("location")
        location = chosen or (default[0] if default else "")
        if not location:
            raise UsageError(
                "no region is set", hint="--region eastus, or [azure] location in cloudtrain.toml"
            )
        return re.sub(r"[\s-]", "", str(location)).lower()

    def _where(self, location: str) -> str:
        parts = (
            f"subscription {self._group.subscription}",
            f"resource group {self._group.name}",
            location,
        )
        return ", ".join(filter(None, parts))

    @cached_property
    def _group(self) -> ResourceGroup:
        """The resource group `azure.resource_group`, or one of the deployment's name."""
        if not re.fullmatch(NAME, self.name):
            hint = "3 to 16 lower-case letters, digits and hyphens, a letter first"
            raise UsageError(f"--name {self.name}: Azure takes no such names", hint=hint)
        default = cli_default_account().get("subscription")
        subscription = self._settings.get("azure.subscription") or (default[0] if default else None)
        if not subscription:
            raise UsageError(
                "azure.subscription is not set",
                hint="az login, or [azure] subscription in cloudtrain.toml",
            )
        try:
            from cloudtrain.providers.azure.infra.client import ResourceGroup
        except ImportError as error:
            message = f"this needs azure-mgmt-resource-deployments, which is not installed: {error}"
            raise UsageError(message, hint='pip install "cloudtrain[azure]"') from error
        group = self._settings.get("azure.resource_group") or self.name
        return ResourceGroup(str(subscription), str(group), self._settings["azure.poll"])
