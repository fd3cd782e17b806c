"""The rights that a command job needs, and which of them roles grant.

They are listed once, in infra/azure/rights.yaml, beside the template that grants them. A role grants
its actions less its notActions, and actions on data likewise ("Azure role definitions").
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from functools import cache
from typing import Any

import yaml

from cloudtrain.bundle import bundled

_BLOBS = "Microsoft.Storage/storageAccounts/blobServices/containers/blobs"
READ_BLOBS = f"{_BLOBS}/read"
WRITE_BLOBS = f"{_BLOBS}/write"
DELETE_BLOBS = f"{_BLOBS}/delete"

ON_DATA = (f"{_BLOBS}/", "Microsoft.KeyVault/vaults/secrets/getSecret/")
"""Prefixes of actions on data: roles that allow all of management, as Owner, do not grant them."""

SCIENTIST = "AzureML Data Scientist"


@cache
def rights_of(who: str) -> Mapping[str, Any]:
    """Return the actions of `people`, of a `job`, or for `looking`, by use; or `roles` by action."""
    text = (bundled("infra") / "azure" / "rights.yaml").read_text(encoding="utf-8")
    actions: Mapping[str, Any] = yaml.safe_load(text)[who]
    return actions


def missing(granted: Iterable[Mapping[str, Any]], actions: Iterable[str]) -> list[str]:
    """Return the actions that these permissions of Azure Resource Manager do not grant."""
    lacking = []
    for action in actions:
        if not any(_grants(permission, action) for permission in granted):
            lacking.append(action)

    return lacking


def _grants(permission: Mapping[str, Any], action: str) -> bool:
    allowed, excluded = "actions", "notActions"
    if action.startswith(ON_DATA):
        allowed, excluded = "dataActions", "notDataActions"

    return _matches(permission, allowed, action) and not _matches(permission, excluded, action)


def _matches(permission: Mapping[str, Any], key: str, action: str) -> bool:
    """Return True if a pattern matches; an asterisk matches anything, in any case."""
    return any(fnmatchcase(action.lower(), name.lower()) for name in permission.get(key) or ())
