"""Meanings and remedies of the errors of Azure: by code, or by words where a code is too wide.

Sources: "Troubleshoot common Azure deployment errors", "Common REST API error codes" and "Blob service
error codes" of storage, "Microsoft Entra authentication and authorization error codes", and "Secure
workspace resources using virtual networks" of Azure ML.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from cloudtrain.errors import DENIED, NAME_TAKEN, ErrorKind

KEYS_FORBIDDEN = "KeyBasedAuthenticationNotPermitted"
"""Storage's code for an account that forbids its keys and their signatures."""

NO_WORKSPACE = "NoWorkspace"
"""Our code for a subscription, group or workspace that does not exist."""

USE_IDENTITY = (
    "let the workspace open its storage by identity: az ml workspace update "
    "--system-datastores-auth-mode identity, with --name and --resource-group"
)

_TRY_AGAIN = "then try again"
_LOGIN = f"az login, {_TRY_AGAIN}"
_NEW_ROLE = "or it was given minutes ago and is not in force yet"

EXPIRED = ErrorKind("the credentials have expired", _LOGIN, "Expired")
NOT_ACCEPTED = ErrorKind("Azure does not accept these credentials", _LOGIN)
NO_CREDENTIALS = ErrorKind(
    "no Azure credentials",
    f"az login (or AZURE_CLIENT_ID, AZURE_TENANT_ID and AZURE_CLIENT_SECRET), {_TRY_AGAIN}",
    "NoCredentials",
)
FORBIDDEN = ErrorKind(
    "Azure refuses it",
    "the message says why; if these credentials lack a role, cloudtrain doctor azure names it",
    DENIED,
)

_NO_ROLE = ErrorKind(
    "not authorized",
    "these credentials lack a role ({action}AzureML Data Scientist on the workspace), " + _NEW_ROLE,
    DENIED,
)
_NO_STORAGE_ROLE = ErrorKind(
    "not authorized",
    "these credentials lack a role ({action}Storage Blob Data Contributor on the workspace's"
    f" storage account), {_NEW_ROLE}",
    DENIED,
)
_SIGNATURE = ErrorKind(
    "the credentials have expired, or this machine's clock is wrong",
    f"check this machine's clock with date -u; {_LOGIN}",
    "Expired",
)
_FIREWALL = ErrorKind(
    "the storage account's firewall keeps this machine out",
    "run this inside its virtual network (VPN, a compute instance), or let this machine's address"
    " in: az storage account network-rule add",
    "Firewall",
)
_PRIVATE = ErrorKind(
    "the workspace is open to its private network alone",
    "run this inside its virtual network (VPN, a compute instance), or ask its owner for public"
    " access: az ml workspace update --public-network-access Enabled",
    "PrivateLink",
)
_POLICY = ErrorKind(
    "a policy of your organization (Azure Policy) forbids it",
    "change the job as the policy that the message names asks (tags, azure.location), or ask its"
    " owner for an exemption; no role helps",
)
_WRONG_TENANT = ErrorKind(
    "the login is of another tenant than the subscription",
    "az login --tenant {tenant}, or the setting azure.tenant: {tenant}",
    "WrongTenant",
)
_PROOF = ErrorKind(
    "your organization asks for a new proof of who you are, such as MFA",
    "az login as the message says, or interactively (az login --tenant {tenant}), then try again",
    "Expired",
)
_BLOCKED = ErrorKind(
    "a Conditional Access policy of your organization blocks this login",
    "log in from a machine and a network that it admits, or ask its administrator",
    "NoCredentials",
)
_CLIENT_SECRET = ErrorKind(
    "the secret of the service principal is wrong or has expired",
    f"a new AZURE_CLIENT_SECRET (az ad sp credential reset), {_TRY_AGAIN}",
    "NoCredentials",
)
_UNKNOWN_LOGIN = ErrorKind(
    "the tenant does not know this login",
    "check AZURE_TENANT_ID, AZURE_CLIENT_ID and azure.tenant: az account list shows your tenants",
    "NoCredentials",
)
_LOCKED = ErrorKind(
    "a lock forbids changes",
    "az lock list shows it; its owner can remove it",
)
_SUBSCRIPTION_OFF = ErrorKind(
    "the subscription is disabled",
    "its owner enables it again, in the portal: Subscriptions; or take another azure.subscription",
)
_SAS_RIGHTS = ErrorKind(
    "the datastore's signature does not allow it",
    "make it again with rights to read, write and list, or let the datastore have none",
    DENIED,
)


def _missing(kind: str, setting: str, command: str) -> ErrorKind:
    return ErrorKind(
        f"no such {kind}, or this login may not see it",
        f"check {setting}: {command} shows yours",
        NO_WORKSPACE,
    )


_NO_SUBSCRIPTION = _missing("subscription", "azure.subscription", "az account list")
_NO_GROUP = _missing("resource group", "azure.resource_group", "az group list")
_NO_SUCH_WORKSPACE = _missing("workspace", "azure.workspace", "az ml workspace list")

BY_CODE: Mapping[str, ErrorKind] = {
    # Azure Resource Manager
    "AuthorizationFailed": _NO_ROLE,
    "LinkedAuthorizationFailed": _NO_ROLE,
    "RBACAccessDenied": _NO_ROLE,
    "ExpiredAuthenticationToken": EXPIRED,
    "InvalidAuthenticationToken": NOT_ACCEPTED,
    "InvalidAuthenticationTokenTenant": _WRONG_TENANT,
    "RequestDisallowedByPolicy": _POLICY,
    "RequestDisallowedByAzure": ErrorKind(
        "Azure does not offer this to the subscription in this region",
        "take another region, or ask Azure's support",
    ),
    "ScopeLocked": _LOCKED,
    "ReadOnlyDisabledSubscription": _SUBSCRIPTION_OFF,
    "SubscriptionNotFound": _NO_SUBSCRIPTION,
    "InvalidSubscriptionId": _NO_SUBSCRIPTION,
    "ResourceGroupNotFound": _NO_GROUP,
    "ParentResourceNotFound": _NO_SUCH_WORKSPACE,
    "WorkspaceNotFound": _NO_SUCH_WORKSPACE,
    "MissingSubscriptionRegistration": ErrorKind(
        "the subscription is not registered for Azure ML",
        "az provider register --namespace Microsoft.MachineLearningServices, and wait some minutes",
    ),
    "NoRegisteredProviderFound": ErrorKind(
        "Azure ML does not exist in this region", "take another region (azure.location)"
    ),
    "PublicNetworkAccessDisabled": _PRIVATE,
    # Storage
    "AuthorizationFailure": _FIREWALL,
    "AuthorizationSourceIPMismatch": _FIREWALL,
    "AuthorizationPermissionMismatch": _NO_STORAGE_ROLE,
    "InsufficientAccountPermissions": _NO_STORAGE_ROLE,
    "AuthorizationProtocolMismatch": _SAS_RIGHTS,
    "AuthorizationResourceTypeMismatch": _SAS_RIGHTS,
    "AuthorizationServiceMismatch": _SAS_RIGHTS,
    "AuthenticationFailed": _SIGNATURE,
    "InvalidAuthenticationInfo": _SIGNATURE,
    KEYS_FORBIDDEN: ErrorKind("the storage account takes no keys", USE_IDENTITY, KEYS_FORBIDDEN),
    "PublicAccessNotPermitted": ErrorKind(
        "the storage account takes no requests without credentials", USE_IDENTITY
    ),
    "AccountIsDisabled": ErrorKind(
        "the storage account is disabled", "its owner enables it again, in the portal"
    ),
    "ContainerNotFound": ErrorKind(
        "the datastore's container does not exist",
        "check azure.datastore: az ml datastore list shows the workspace's",
        "NotFound",
    ),
    "BlobImmutableDueToPolicy": ErrorKind(
        "an immutability policy of the container forbids changes", "take another azure.datastore"
    ),
    "LeaseIdMissing": ErrorKind(
        "somebody holds a lease on it",
        "end it: az storage blob lease break, or az storage container",
    ),
    # an earlier attempt of the SDK to upload it, whose answer was lost
    "BlobAlreadyExists": ErrorKind("it is there already", "try again", transient=True),
    # Microsoft Entra ID
    "AADSTS50076": _PROOF,
    "AADSTS50078": _PROOF,
    "AADSTS50079": _PROOF,
    "AADSTS50173": EXPIRED,
    "AADSTS70043": EXPIRED,
    "AADSTS700082": EXPIRED,
    "AADSTS53000": _BLOCKED,
    "AADSTS53003": _BLOCKED,
    "AADSTS7000215": _CLIENT_SECRET,
    "AADSTS7000222": _CLIENT_SECRET,
    "AADSTS50020": _UNKNOWN_LOGIN,
    "AADSTS700016": _UNKNOWN_LOGIN,
    "AADSTS90002": _UNKNOWN_LOGIN,
}

BY_WORDS: tuple[tuple[str, ErrorKind], ...] = (
    (r"designated private link|public (network )?access .{0,40}(disabled|not allowed)", _PRIVATE),
    (r"disallowed by policy", _POLICY),
    (r"claims[- ]challenge|MFA is required", _PROOF),
    (r"token.{0,60}(is|has|was)? ?expired|lifetime validation failed", EXPIRED),
    (r"access token is from the wrong issuer", _WRONG_TENANT),
    (r"server failed to authenticate the request", _SIGNATURE),
    (r"does not have authorization to perform action|permissions for \S+ actions", _NO_ROLE),
    (
        r"unknown compute target|compute not found",
        ErrorKind(
            "no such compute",
            "check azure.compute: az ml compute list shows the workspace's clusters",
        ),
    ),
    (r"workspaces/[^/'\s]+'? .*not found", _NO_SUCH_WORKSPACE),
    (
        r"\bjob\b.*already exists|already exists.*\bjob\b",
        ErrorKind("the name is taken", "take another --run-id", NAME_TAKEN),
    ),
)
"""Expression, without case, and the meaning of a message that it matches, whatever the code."""

_TENANT = re.compile(
    r"(?:match the tenant 'https://sts\.windows\.net/|authorization_uri=\"https://[^/\"]+/)"
    r"([0-9a-f-]{36})"
)
_ACTION = re.compile(r"perform action '([^']+)'|permissions for (\S+) actions")
_ENTRA = re.compile(r"AADSTS\d+")


def meaning(code: str, message: str, action: str = "") -> ErrorKind | None:
    """Return what an error means, and what to do; None if it is in no table.

    `action`: the missing one, if the service does not name it.
    """
    kind = None
    for words, by_words in BY_WORDS:
        if kind is None and re.search(words, message, re.IGNORECASE):
            kind = by_words
    for known_code in (code, *_ENTRA.findall(message)):
        kind = kind or BY_CODE.get(known_code)

    if kind is None:
        return None

    named = _ACTION.search(message)
    if named:
        action = named[1] or named[2]

    if action:
        action += ": "

    tenant = _TENANT.search(message)
    tenant_id = tenant[1] if tenant else "TENANT"
    return kind._replace(hint=kind.hint.format(action=action, tenant=tenant_id))
