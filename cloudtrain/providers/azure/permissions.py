"""Actions of submitters in Azure's management; infra/azure grants these.

Tests compare this list with the template, and with the calls that the client makes on a loopback.
Storage and registry have built-in roles: Storage Blob Data Contributor and AcrPush. Names are those
of "Azure permissions" in Microsoft's documentation.
"""

from __future__ import annotations

WORKSPACES = "Microsoft.MachineLearningServices/workspaces"
BLOBS = "Microsoft.Storage/storageAccounts/blobServices/containers/blobs"
READ_BLOBS = f"{BLOBS}/read"
WRITE_BLOBS = f"{BLOBS}/write"

DOCTOR = (
    "Microsoft.Authorization/permissions/read",
    "Microsoft.Authorization/roleAssignments/read",
    "Microsoft.Authorization/roleDefinitions/read",
    "Microsoft.KeyVault/vaults/read",
)
"""Actions that only `doctor` and `check --online` use."""

CALLED = (
    f"{WORKSPACES}/codes/versions/read",
    f"{WORKSPACES}/codes/versions/write",
    f"{WORKSPACES}/computes/read",
    f"{WORKSPACES}/datastores/read",
    f"{WORKSPACES}/environments/versions/read",
    f"{WORKSPACES}/environments/versions/write",
    f"{WORKSPACES}/experiments/runs/read",
    f"{WORKSPACES}/jobs/cancel/action",
    f"{WORKSPACES}/jobs/read",
    f"{WORKSPACES}/jobs/write",
)
"""Actions of submitting, following and stopping jobs."""

_IMPLIED = (
    f"{WORKSPACES}/environments/build/action",
    f"{WORKSPACES}/environments/readSecrets/action",
    f"{WORKSPACES}/environments/write",
    f"{WORKSPACES}/metadata/artifacts/write",
)
"""Further actions of "Submitting any type of run (V2)" in Microsoft's "Manage access to Azure
Machine Learning workspaces".
"""

SUBMITTER = (*DOCTOR, f"{WORKSPACES}/read", *CALLED, *_IMPLIED)
"""For people and CI."""
