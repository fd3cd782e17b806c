"""Why a deployment failed: the errors at the root of what Azure tells, and what to do about each.
No network.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cloudtrain.errors import DENIED, CloudError

_SHELLS = {
    *(
        "DeploymentFailed",
        "ResourceDeploymentFailure",
        "InvalidTemplateDeployment",
        "BadRequest",
        "Conflict",
    ),
    *("MultipleErrorsOccurred", "PreflightValidationCheckFailed", "Forbidden"),
}
"""Codes that say only that something went wrong; the error inside says what."""


@dataclass(frozen=True, slots=True)
class Failure:
    """One error at the root."""

    code: str
    message: str
    resource: str = ""
    """Type and name of the resource that failed; empty where none is to blame."""


@dataclass(frozen=True, slots=True)
class _Remedy:
    pattern: str
    """What code and message look like, in any case."""
    hint: str


# Each is found in "Troubleshoot common Azure deployment errors", the services' own pages, or issues
# of their tools.
_REMEDIES = (
    _Remedy(
        "exists in deleted state",
        "infra up brings a deleted key vault back where it may look for it: the role Key Vault"
        " Reader on the subscription; or: az keyvault recover --name NAME",
    ),
    _Remedy(
        "soft-deleted workspace exists",
        "a deleted workspace of that name is kept for 14 days: recover it, or delete it for good,"
        " in the portal under Azure Machine Learning > Recently deleted; or use another --name",
    ),
    _Remedy(
        "roleassignmentupdatenotpermitted",
        "a role assignment of an identity that is gone is in the way: az role assignment list --all"
        " shows those whose principal has no name, az role assignment delete --ids ID removes one",
    ),
    _Remedy(
        "roleassignmentexists",
        "that role was assigned by hand under another name: az role assignment delete --ids ID, and"
        " the template assigns it",
    ),
    _Remedy(
        "roledefinitions/write",
        "to define a role one needs Owner, or User Access Administrator besides Contributor, on the"
        " resource group; who has Role Based Access Control Administrator instead: --set"
        " submitter_role=built-in",
    ),
    _Remedy(
        "roledefinitionhasassignments",
        "Azure still knows an assignment of that role: the same command again in some minutes; one"
        " that somebody made by hand elsewhere is shown by az role assignment list --all",
    ),
    _Remedy(
        "roledefinitionwithsamenameexists",
        "a role of that name is left of an earlier deployment: az role definition delete --name"
        " NAME",
    ),
    _Remedy(
        "roleassignments/write|does not have"
        " (permission|authorization)|authorizationfailed|linkedauthorizationfailed",
        "who sets up the account needs the role Owner on the resource group, or Contributor and"
        " Role Based Access Control Administrator: az role assignment create --role ROLE --assignee"
        " YOU --scope GROUP_ID",
    ),
    _Remedy(
        "principalnotfound",
        "a submitter's object id is not of this tenant, or of another kind: az ad user show --id"
        " NAME --query id; ID:group and ID:app for groups and applications",
    ),
    _Remedy(
        "missingsubscriptionregistration|not registered to use namespace",
        "az provider register --namespace NAMESPACE",
    ),
    _Remedy(
        "requestdisallowedbypolicy",
        "a policy of your organisation forbids it; the message names which one",
    ),
    _Remedy(
        "quota",
        "ask for more in the studio: Quota > Azure Machine Learning; or smaller clusters, "
        "--set clusters=NAME:SIZE:NODES",
    ),
    _Remedy(
        "skunotavailable|invalidvmsize|vm ?size.*not (supported|available)|not supported in (the"
        " )?(current )?region",
        "az vm list-skus --location LOCATION shows the sizes there are; --set"
        " clusters=NAME:SIZE:NODES",
    ),
    _Remedy(
        "start date of budgets",
        "--set budget=0, then again with the budget: a budget's first month cannot be changed",
    ),
    _Remedy(
        "alreadyexists|nameunavailable|already (taken|in use)|vaultalreadyexists",
        "another --name: it is taken in Azure",
    ),
    _Remedy(
        "propertychangenotallowed|cannot be (changed|updated)|immutable",
        "a cluster's size, priority and network are for good: az ml compute delete removes it, or"
        " name a new one",
    ),
    _Remedy(
        "deploymentactive",
        "another deployment of that name is under way; infra show tells when it has ended",
    ),
    _Remedy(
        "resourcegroupbeingdeleted",
        "the resource group is just being deleted: wait until az group exists says false",
    ),
    _Remedy(
        "locationnotavailable|not available in location|invalidresourcelocation",
        "--region REGION: another one",
    ),
    _Remedy("scopelocked", "a lock protects it: az lock list --resource-group GROUP shows which"),
)


def root_failures(error: Mapping[str, Any], resource: str = "") -> tuple[Failure, ...]:
    """The innermost errors of one that Azure tells; those that say no more than others are left
    out.
    """
    return tuple(dict.fromkeys(_roots(error, resource)))


def failures_of(operations: Sequence[Mapping[str, Any]]) -> tuple[Failure, ...]:
    """What failed in a deployment, by its steps: the resource and the innermost errors of each."""
    found: list[Failure] = []
    for step in operations:
        target = step.get("targetResource") or {}
        if step.get("provisioningState") == "Failed" and target:
            name = f"{target.get('resourceType', '')} {target.get('resourceName', '')}".strip()
            found += root_failures((step.get("statusMessage") or {}).get("error") or {}, name)
    return tuple(dict.fromkeys(found))


def explained(failures: Sequence[Failure], what: str) -> CloudError:
    """The error for these failures: each with its resource and Azure's reason, and what to do about
    the first known.
    """
    lines = [f"{each.resource}: {each.message} ({each.code})" if each.resource else f"{each.message} ({each.code})"
             for each in failures] or ["Azure gives no reason"]  # fmt: skip
    message = f"{what}: {lines[0]}" if len(lines) == 1 else "\n  ".join([f"{what}:", *lines])
    texts = [f"{each.code} {each.message}" for each in failures]
    hint = next(
        (remedy.hint for text in texts for remedy in _REMEDIES if _fits(remedy, text)), None
    )
    denied = any(
        re.search("authorizationfailed|does not have (permission|authorization)", text, re.I)
        for text in texts
    )
    return CloudError(
        message, hint=hint, code=DENIED if denied else failures[0].code if failures else ""
    )


def _fits(remedy: _Remedy, text: str) -> bool:
    return re.search(remedy.pattern, text, re.IGNORECASE) is not None


def _roots(error: Mapping[str, Any], resource: str) -> Iterator[Failure]:
    code = str(error.get("code") or "")
    message = str(error.get("message") or "")
    inner = [each for each in error.get("details") or [] if isinstance(each, dict)]
    inner += [
        each for each in (_inside(message), error.get("innererror")) if each and each.get("message")
    ]
    if inner and (code in _SHELLS or _inside(message)):
        for each in inner:
            yield from _roots(each, resource)
    elif code or message:
        yield Failure(code or "Unknown", " ".join(message.split()).rstrip("."), resource)


def _inside(message: str) -> dict[str, Any] | None:
    """The error that a service put into a message as JSON."""
    try:
        found = json.loads(message)
        return dict(found.get("error") or found)
    except (ValueError, AttributeError, TypeError):
        return None
