"""Which operation of Resource Manager a request is, by its method and path."""

from __future__ import annotations

import re

_GROUP = r"/subscriptions/(?P<subscription>[^/]+)/resource[gG]roups/(?P<group>[^/]+)"
_DEPLOYMENT = rf"{_GROUP}/providers/Microsoft\.Resources/deployments/(?P<name>[^/]+)"
ROUTES = [
    (method, operation, re.compile(pattern))
    for method, operation, pattern in (
        ("GET", "GetGroup", _GROUP),
        ("PUT", "PutGroup", _GROUP),
        ("DELETE", "DeleteGroup", _GROUP),
        ("GET", "ListResources", f"{_GROUP}/resources"),
        ("POST", "WhatIf", f"{_DEPLOYMENT}/whatIf"),
        ("PUT", "PutDeployment", _DEPLOYMENT),
        ("GET", "GetDeployment", _DEPLOYMENT),
        ("DELETE", "DeleteDeployment", _DEPLOYMENT),
        ("GET", "ListOperations", rf"{_GROUP}/deployments/(?P<name>[^/]+)/operations"),
        (
            "GET",
            "ListRoleAssignments",
            rf"{_GROUP}(?:/providers/.+?)?/providers/Microsoft\.Authorization/roleAssignments",
        ),
        (
            "GET",
            "ListRoleDefinitions",
            rf"{_GROUP}/providers/Microsoft\.Authorization/roleDefinitions",
        ),
        (
            "GET",
            "ListDeletedVaults",
            r"/subscriptions/(?P<subscription>[^/]+)/providers/Microsoft\.KeyVault/deletedVaults",
        ),
        (
            "GET",
            "GetResult",
            r"/subscriptions/(?P<subscription>[^/]+)/operationresults/(?P<name>[^/]+)",
        ),
        ("DELETE", "DeleteResource", rf"{_GROUP}/providers/.+"),
        ("GET", "GetResource", rf"{_GROUP}/providers/.+"),
    )
]


def operation_of(method: str, path: str) -> tuple[str, dict[str, str]] | None:
    """Which operation of this service a request is, and what its address names; None where it is
    none.
    """
    for verb, operation, pattern in ROUTES:
        found = pattern.fullmatch(path) if verb == method else None
        if found:
            return operation, found.groupdict()
    return None
