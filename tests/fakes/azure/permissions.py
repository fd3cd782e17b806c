"""Actions that each call needs of its caller, and each stage of a job of its identity; and the
refusals of each service.

After "Azure permissions for AI + machine learning" (and "for Storage", "Management and governance",
"Security", "Containers"), "Manage access to Azure Machine Learning workspaces" (Submitting any type
of run (V2)), and "Permissions for calling data operations" of the Blob service. For
startPendingUpload those pages list no separate action.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from tests.fakes.azure.account import PROVIDER, WORKSPACES, Account
from tests.fakes.azure.rbac import Attempt
from tests.fakes.azure.rights import RIGHTS
from tests.fakes.azure.wire import Place
from tests.fakes.messages import Call, ServiceError

_WORKSPACE = {
    "GetWorkspace": "read",
    **dict.fromkeys(("ListCodes", "GetCode"), "codes/versions/read"),
    **dict.fromkeys(("PutCode", "StartPendingUpload"), "codes/versions/write"),
    **dict.fromkeys(("GetDataContainer", "GetData"), "data/versions/read"),
    "PutData": "data/versions/write",
    **dict.fromkeys(("ListEnvironments", "GetEnvironment"), "environments/versions/read"),
    "PutEnvironment": "environments/versions/write",
    **dict.fromkeys(("ListJobs", "GetJob"), "jobs/read"),
    "PutJob": "jobs/write",
    "CancelJob": "jobs/cancel/action",
    "GetCompute": "computes/read",
    "GetDatastore": "datastores/read",
    "ListSecrets": "datastores/listsecrets/action",
    **dict.fromkeys(("GetRunDetails", "ListChildren"), "experiments/runs/read"),
}
"""Actions on a workspace."""
_WITH_A_JOB = (
    *("environments/build/action", "environments/readSecrets/action", "environments/write"),
    "metadata/artifacts/write",
)
"""Further actions of the submitter."""
_REGION = {
    "ListUsages": "locations/usages/read",
    "ListVmSizes": "locations/vmsizes/read",
}
"""Actions on a subscription: roles on a workspace do not include them."""
_CONTAINER = "Microsoft.Storage/storageAccounts/blobServices/containers"
_BLOB = {
    **dict.fromkeys(("GetBlob", "HeadBlob", "ListBlobs"), "read"),
    **dict.fromkeys(("PutBlob", "PutBlock", "PutBlockList", "SetBlobMetadata"), "write"),
}
PULL, PUSH = (
    f"Microsoft.ContainerRegistry/registries/{verb}" for verb in ("pull/read", "push/write")
)
GET_SECRET = "Microsoft.KeyVault/vaults/secrets/getSecret/action"
KNOWN = frozenset(
    {
        *(f"{WORKSPACES}/{suffix}" for suffix in (*_WORKSPACE.values(), *_WITH_A_JOB)),
        *(f"{PROVIDER}/{suffix}" for suffix in _REGION.values()),
        *RIGHTS.values(),
    }
)
"""The actions of management that are decided about here, all of them listed by their providers."""


def attempts(call: Call, place: Place, account: Account) -> Iterator[Attempt]:
    """Return the actions that a call needs; empty for a call that everybody may make."""
    name = call.operation
    scope = account.scope
    if call.service in ("arm", "history") and name in _WORKSPACE:
        yield Attempt(action=f"{WORKSPACES}/{_WORKSPACE[name]}", scope=scope)
        for more in _WITH_A_JOB if name == "PutJob" else ():
            yield Attempt(action=f"{WORKSPACES}/{more}", scope=scope)
    elif call.service == "arm" and name in _REGION:
        yield Attempt(
            action=f"{PROVIDER}/{_REGION[name]}", scope=f"/subscriptions/{account.subscription}"
        )
    elif call.service == "blob" and name in _BLOB:
        yield _on_blobs(_BLOB[name], place.names["container"], account)
    elif call.service == "blob" and name == "GetContainer":
        yield Attempt(
            action=f"{_CONTAINER}/read", scope=_container(place.names["container"], account)
        )
    elif call.service == "vault":
        yield Attempt(action=GET_SECRET, scope=account.part("jobsVault"), on_data=True)
    elif name in RIGHTS:
        yield Attempt(
            action=RIGHTS[name],
            scope=account.real(place.path.partition("/providers/Microsoft.Authorization")[0]),
        )


def check(call: Call, place: Place, account: Account, principal: str) -> None:
    """ServiceError unless a principal may make a call."""
    for attempt in attempts(call, place, account):
        if not account.access.allows(principal, attempt):
            raise refusal(call.service, attempt.action, place.path, principal)


def refusal(service: str, action: str, path: str, principal: str) -> ServiceError:
    """How a service refuses who lacks an action. Storage keeps to itself which one it is."""
    if service == "blob":
        message = "This request is not authorized to perform this operation using this permission."
        return ServiceError("AuthorizationPermissionMismatch", message, 403)
    if service == "history":  # Azure/azureml-previews issue 321
        return ServiceError(
            "UserError", f"Identity does not have permissions for {action} actions.", 403
        )
    if service in ("vault", "msi"):
        message = (
            "Caller is not authorized to perform action on resource.\r\nCaller:"
            f" appid=loopback;oid={principal}\r\nAction: '{action}'\r\nInnererror: ForbiddenByRbac"
        )
        return ServiceError("Forbidden", message, 403)
    message = (
        f"The client '{principal}' with object id '{principal}' does not have authorization to"
        f" perform action '{action}' over scope '{path}' or the scope is invalid. If access was"
        " recently granted, please refresh your credentials."
    )
    return ServiceError("AuthorizationFailed", message, 403)


def check_push(account: Account, principal: str) -> None:
    """Check the actions for an image push by the registry's protocol.

    Raise ServiceError with its answer.
    """
    for action in (PULL, PUSH):
        if not account.access.allows(
            principal, Attempt(action=action, scope=account.part("containerRegistry"))
        ):
            message = (
                "authentication required, visit https://aka.ms/acr/authorization for more"
                " information."
            )
            raise ServiceError("UNAUTHORIZED", message, 401)


def missing_for_image(image: str, account: Account, principal: str) -> bool:
    """Return whether the identity of a job's machines lacks the right to pull its image."""
    registry = account.part("containerRegistry")
    is_of_workspace = image.startswith(f"{registry.rpartition('/')[2]}.azurecr.io/")
    return is_of_workspace and not account.access.allows(
        principal, Attempt(action=PULL, scope=registry)
    )


def missing_for_data(containers: Mapping[str, str], account: Account, principal: str) -> str:
    """The first container that the identity of a job may not use as it must; empty for none.

    `containers`: `r` for one that is read, `rw` for one that is written, where files are replaced
    and deleted too.
    """
    for name, use in containers.items():
        for verb in ("read", "write", "delete") if use == "rw" else ("read",):
            if not account.access.allows(principal, _on_blobs(verb, name, account)):
                return name
    return ""


def _on_blobs(verb: str, container: str, account: Account) -> Attempt:
    return Attempt(
        action=f"{_CONTAINER}/blobs/{verb}", scope=_container(container, account), on_data=True
    )


def _container(name: str, account: Account) -> str:
    return f"{account.part('storageAccount')}/blobServices/default/containers/{name}"
