"""The actions that submitting people need of Azure's management, and what for: infra/azure's own
role has these alone.

Tests hold this list against the template, and against the calls that the client makes on a
loopback, so that neither grows alone. Storage and registry have built-in roles of their own there:
Storage Blob Data Contributor and AcrPush.
"""

from __future__ import annotations

from dataclasses import dataclass

WORKSPACES = "Microsoft.MachineLearningServices/workspaces"
BLOBS = "Microsoft.Storage/storageAccounts/blobServices/containers/blobs"
READ_BLOBS = f"{BLOBS}/read"
WRITE_BLOBS = f"{BLOBS}/write"


@dataclass(frozen=True, slots=True)
class Permission:
    """One action of "Azure permissions" in Microsoft's documentation."""

    action: str
    used_for: str
    """What does not work without it."""
    implied_by: str = ""
    """Where no call of the client has this name: what requires it all the same."""
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
