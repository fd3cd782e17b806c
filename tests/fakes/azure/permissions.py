"""Actions that calls and jobs need of their caller, and Azure's error answers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from tests.fakes.azure.account import PROVIDER, WORKSPACES, Account
from tests.fakes.azure.rights import RIGHTS, Attempt
from tests.fakes.azure.tokens import OBJECT_ID
from tests.fakes.azure.wire import Place, call_of
from tests.fakes.messages import Call, FaultKind, Request, ServiceError

# Actions that each call needs of its caller, and each stage of a job of its identity; and the
# refusals of each service.
# After "Azure permissions for AI + machine learning" (and "for Storage", "Management and
# governance", "Security", "Containers"), "Manage access to Azure Machine Learning workspaces"
# (Submitting any type of run (V2)), and "Permissions for calling data operations" of the Blob
# service. For startPendingUpload those pages list no separate action.

_WORKSPACE = {
    "GetWorkspace": "read",
    **dict.fromkeys(("ListCodes", "GetCode"), "codes/versions/read"),
    **dict.fromkeys(("PutCode", "StartPendingUpload"), "codes/versions/write"),
    **dict.fromkeys(("GetDataContainer", "GetData", "ListData"), "data/versions/read"),
    **dict.fromkeys(("GetModel", "ListModels"), "models/versions/read"),
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
    **dict.fromkeys(("PutBlob", "SetBlobMetadata"), "write"),
    "DeleteBlob": "delete",
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


# Azure's error answers, in the form of each of its services.

_ARM = {
    "throttle": ServiceError(
        "TooManyRequests", "The request is being throttled as the limit has been reached.", 429
    ),
    "error": ServiceError(
        "InternalServerError", "The server encountered an internal error. Please try again.", 500
    ),
    "expired": ServiceError(
        "ExpiredAuthenticationToken",
        "The access token expiry UTC time '11/20/2026 9:00:00 AM' is earlier than current UTC time "
        "'11/20/2026 10:00:00 AM'.",
        401,
    ),
}
_HISTORY = {
    "throttle": ServiceError(
        "TransientError", "The request is being throttled. Please try again later.", 429
    ),
    "error": ServiceError("ServiceError", "InternalServerError", 500),
    "expired": ServiceError(
        "UserError",
        "Token expired: IDX10223: Lifetime validation failed. The token is expired.",
        401,
    ),
}
_VAULT = {
    "throttle": ServiceError("Throttled", "Too many requests to the vault.", 429),
    "error": ServiceError("InternalServerError", "An unexpected error occurred.", 500),
    "expired": ServiceError(
        "Unauthorized", "[TokenExpired] Error validating token: 'S2S12086'.", 401
    ),
}
_BLOB_ANSWERS = {
    "throttle": ServiceError("ServerBusy", "The server is busy.", 503),
    "error": ServiceError(
        "InternalError", "The server encountered an internal error. Please retry the request.", 500
    ),
}


def user_error(message: str, status: int = 400, *inner: str, pattern: str = "") -> ServiceError:
    """Return Azure ML's usual error for an invalid request."""
    return ServiceError("UserError", message, status, inner=inner, pattern=pattern)


def job_not_found(name: str) -> ServiceError:
    """Return the error for an unknown job."""
    return user_error(
        f"Job {name} not found.", 404, "NotFound", "JobNotFound", pattern="Job {jobId} not found."
    )


def invalid(*reasons: str) -> ServiceError:
    """Return Azure ML's error for a malformed request: the reasons are in its details alone."""
    message = "Request is invalid and/or missing fields."
    return ServiceError(
        "UserError", message, reasons=reasons, inner=["RequestInvalid"], pattern=message
    )


def unauthenticated(service: str, *, scheme: str = "Bearer") -> ServiceError:
    """Return the error for invalid credentials."""
    if service == "blob":
        message = (
            "Server failed to authenticate the request. Make sure the value of Authorization header"
            " is formed correctly including the signature."
        )
        return ServiceError("AuthenticationFailed", message, 401 if scheme == "Bearer" else 403)
    if service == "history":
        return ServiceError(
            "UserError",
            "Unable to authenticate the request: the Authorization header is not valid.",
            401,
        )
    if service == "vault":
        return ServiceError(
            "Unauthorized", "AKV10000: Request is missing a Bearer or PoP token.", 401
        )
    return ServiceError("InvalidAuthenticationToken", "The access token is invalid.", 401)


def error_of(
    kind: FaultKind, call: Call, request: Request, account: Account
) -> ServiceError | None:
    """The error that a fault of this kind answers with; None for one that answers with none."""
    if kind == "denied":
        return _denied(call, request, account)
    if kind == "unseen":
        return job_not_found(call_of(request)[1].names.get("name", ""))
    if call.service == "blob":
        if kind == "expired":
            bearer = request.headers.get("authorization", "").startswith("Bearer")
            return unauthenticated("blob", scheme="Bearer" if bearer else "SAS")
        return _BLOB_ANSWERS.get(kind)
    if call.service == "history":
        return _HISTORY.get(kind)
    if call.service in ("vault", "msi"):
        return _VAULT.get(kind)
    return _ARM.get(kind)


def _denied(call: Call, request: Request, account: Account) -> ServiceError:
    """The refusal of one who lacks what the call needs."""
    place = call_of(request)[1]
    needed = next(attempts(call, place, account), None)
    return refusal(call.service, needed.action if needed else "", place.path, OBJECT_ID)
