"""Barriers before Azure's services: tenants, policies, private networks, firewalls, throttling.

The answers are those of public reports, with the names of this imitation.
"""

from __future__ import annotations

from tests.fakes.azure.account import Account
from tests.fakes.messages import Call, ServiceError

_CONTROL = ("GetWorkspace", "ListUsages", "ListVmSizes")
"""Calls of Resource Manager itself, which a private workspace also answers from outside."""


def barrier(call: Call, account: Account) -> ServiceError | None:
    """The refusal of a call, whoever makes it; None if nothing stands before it."""
    refused = None
    if call.service in ("arm", "rights") and account.home_tenant not in ("", account.tenant):
        refused = _of_another_tenant(account)
    elif call.service == "blob" and account.storage_is_private:
        message = "This request is not authorized to perform this operation."
        refused = ServiceError("AuthorizationFailure", message, 403)
    elif call.service in ("arm", "history") and account.is_private:
        refused = None if call.operation in _CONTROL else _PRIVATE_LINK
    elif call.operation == "PutJob" and account.policy:
        refused = _disallowed(account.policy)

    if refused is None and account.throttled.get(call.operation, 0) > 0:
        account.throttled[call.operation] -= 1
        refused = ServiceError(
            "TooManyRequests", "The request was throttled.", 429, retry_after=account.retry_after
        )

    return refused


def _of_another_tenant(account: Account) -> ServiceError:
    issuers = (
        f"https://sts.windows.net/{tenant}/" for tenant in (account.tenant, account.home_tenant)
    )
    message = (
        "The access token is from the wrong issuer '{}'. It must match the tenant '{}' associated"
        f" with this subscription. Please use the authority (URL) 'https://login.windows.net/"
        f"{account.home_tenant}' to get the token."
    )
    return ServiceError("InvalidAuthenticationTokenTenant", message.format(*issuers), 401)


_PRIVATE_LINK = ServiceError(
    "UserError",
    "User is not authorized to access provided resources due to none of the workspaces/registries"
    " are accessible from outside of the designated private link.",
    403,
)


def _disallowed(policy: str) -> ServiceError:
    message = (
        "Resource 'job' was disallowed by policy. Policy identifiers:"
        f""" '[{{"policyAssignment":{{"name":"{policy}"}}}}]'."""
    )
    return ServiceError("RequestDisallowedByPolicy", message, 403)
