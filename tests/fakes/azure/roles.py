"""The built-in roles that infra/azure and the tests assign, each as the page that is named beside
it defines it.
"""

from __future__ import annotations

from collections.abc import Mapping

from tests.fakes.azure.rbac import Role

_ML = "Microsoft.MachineLearningServices/workspaces"
_BLOBS = "Microsoft.Storage/storageAccounts/blobServices"
_BLOB = f"{_BLOBS}/containers/blobs"

OWNER = "8e3af657-a8ff-443c-a75c-2fe8c4bcb635"
READER = "acdd72a7-3385-48ef-bd42-f606fba81ae7"
SCIENTIST = "f6c7c914-8db3-469d-8ca1-694a8f32e121"
AI_ADMINISTRATOR = "b78c5d69-af96-48a3-bf8d-a8b4d589de94"
BLOBS = "ba92f5b4-2d11-453d-a403-e96b0029c9fe"
PULL = "7f951dda-4ed3-4680-a7ca-43fe172d538d"
PUSH = "8311e382-0749-4cb8-b61a-304f252e45ec"
SECRETS = "4633458b-17de-408a-b874-0445c86b69e6"
VAULT_ADMINISTRATOR = "00482a5a-887f-4fb3-b363-3b7fe8e74483"

BUILT_IN: Mapping[str, Role] = {
    # "Azure built-in roles for Privileged"
    OWNER: Role(name="Owner", actions=("*",)),
    # "Azure built-in roles for General"
    READER: Role(name="Reader", actions=("*/read",)),
    # "Azure built-in roles for AI + machine learning"
    SCIENTIST: Role(
        name="AzureML Data Scientist",
        actions=(f"{_ML}/*/read", f"{_ML}/*/action", f"{_ML}/*/delete", f"{_ML}/*/write"),
        not_actions=(
            *(
                f"{_ML}/delete",
                f"{_ML}/write",
                f"{_ML}/computes/*/write",
                f"{_ML}/computes/*/delete",
            ),
            *(
                f"{_ML}/computes/listKeys/action",
                f"{_ML}/listKeys/action",
                f"{_ML}/hubs/write",
                f"{_ML}/hubs/delete",
            ),
            *(f"{_ML}/featurestores/write", f"{_ML}/featurestores/delete"),
        ),
    ),
    # the same page, of its list only the five kinds of resources that a workspace is made of
    AI_ADMINISTRATOR: Role(
        name="Azure AI Administrator",
        actions=(
            *(
                "Microsoft.Authorization/*/read",
                "Microsoft.ContainerRegistry/registries/*",
                f"{_ML}/*",
            ),
            *(
                "Microsoft.Insights/components/*",
                "Microsoft.KeyVault/*",
                "Microsoft.Storage/storageAccounts/*",
            ),
        ),
    ),
    # "Azure built-in roles for Storage"
    BLOBS: Role(
        name="Storage Blob Data Contributor",
        actions=(
            *(
                f"{_BLOBS}/containers/delete",
                f"{_BLOBS}/containers/read",
                f"{_BLOBS}/containers/write",
            ),
            f"{_BLOBS}/generateUserDelegationKey/action",
        ),
        data_actions=(
            *(
                f"{_BLOB}/delete",
                f"{_BLOB}/read",
                f"{_BLOB}/write",
                f"{_BLOB}/move/action",
                f"{_BLOB}/add/action",
            ),
        ),
    ),
    # "Azure built-in roles for Containers"
    PULL: Role(name="AcrPull", actions=("Microsoft.ContainerRegistry/registries/pull/read",)),
    PUSH: Role(
        name="AcrPush",
        actions=(
            "Microsoft.ContainerRegistry/registries/pull/read",
            "Microsoft.ContainerRegistry/registries/push/write",
        ),
    ),
    # "Azure built-in roles for Security"
    SECRETS: Role(
        name="Key Vault Secrets User",
        data_actions=(
            "Microsoft.KeyVault/vaults/secrets/getSecret/action",
            "Microsoft.KeyVault/vaults/secrets/readMetadata/action",
        ),
    ),
    VAULT_ADMINISTRATOR: Role(
        name="Key Vault Administrator",
        actions=(
            *("Microsoft.Authorization/*/read", "Microsoft.KeyVault/checkNameAvailability/read"),
            *("Microsoft.KeyVault/deletedVaults/read", "Microsoft.KeyVault/locations/*/read"),
            *("Microsoft.KeyVault/vaults/*/read", "Microsoft.KeyVault/operations/read"),
        ),
        data_actions=("Microsoft.KeyVault/vaults/*",),
    ),
}
