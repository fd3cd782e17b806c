"""Actions of submitters in Azure's management, with their uses; infra/azure grants these.

Tests compare this list with the template, and with the calls that the client makes on a loopback.
Storage and registry have built-in roles: Storage Blob Data Contributor and AcrPush.
"""

from __future__ import annotations

from dataclasses import dataclass

WORKSPACES = "Microsoft.MachineLearningServices/workspaces"
BLOBS = "Microsoft.Storage/storageAccounts/blobServices/containers/blobs"
READ_BLOBS = f"{BLOBS}/read"
WRITE_BLOBS = f"{BLOBS}/write"


@dataclass(frozen=True, slots=True)
class Permission:
    """An action of "Azure permissions" in Microsoft's documentation."""

    action: str
    used_for: str
    """Feature that needs it."""
    implied_by: str = ""
    """Reason for an action that no call of the client names."""
    is_doctors: bool = False
    """True if only `doctor` and `check --online` use it."""


_SUBMITTING = (
    'submitting any type of run (V2), by "Manage access to Azure Machine Learning workspaces"'
)

SUBMITTER = (
    Permission(
        "Microsoft.Authorization/permissions/read", "whether you may submit", is_doctors=True
    ),
    Permission(
        "Microsoft.Authorization/roleAssignments/read",
        "the roles of the job's identity",
        is_doctors=True,
    ),
    Permission(
        "Microsoft.Authorization/roleDefinitions/read", "what these roles grant", is_doctors=True
    ),
    Permission(
        "Microsoft.KeyVault/vaults/read",
        "whether the vault of a secret goes by roles",
        is_doctors=True,
    ),
    Permission(
        f"{WORKSPACES}/codes/versions/read", "submit: whether the source was uploaded before"
    ),
    Permission(f"{WORKSPACES}/codes/versions/write", "submit: the source"),
    Permission(f"{WORKSPACES}/computes/read", "submit: whether the cluster can run the job"),
    Permission(
        f"{WORKSPACES}/datastores/read", "submit, fetch, stop: where a datastore's files are"
    ),
    Permission(f"{WORKSPACES}/environments/build/action", "submit", _SUBMITTING),
    Permission(f"{WORKSPACES}/environments/readSecrets/action", "submit", _SUBMITTING),
    Permission(
        f"{WORKSPACES}/environments/versions/read", "submit: the newest version of an environment"
    ),
    Permission(f"{WORKSPACES}/environments/versions/write", "submit: the image"),
    Permission(f"{WORKSPACES}/environments/write", "submit", _SUBMITTING),
    Permission(f"{WORKSPACES}/experiments/runs/read", "status, logs, metrics: the run history"),
    Permission(f"{WORKSPACES}/jobs/cancel/action", "stop"),
    Permission(
        f"{WORKSPACES}/jobs/read",
        "list, and telling after a lost answer whether a job is this submit's",
    ),
    Permission(f"{WORKSPACES}/jobs/write", "submit"),
    Permission(f"{WORKSPACES}/metadata/artifacts/write", "submit", _SUBMITTING),
    Permission(f"{WORKSPACES}/read", "submit: where the workspace is, for prices and quotas"),
)
"""For people and CI."""
