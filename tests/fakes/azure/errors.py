"""Azure's error answers, in the form of each of its services."""

from __future__ import annotations

from tests.fakes.azure.account import Account
from tests.fakes.azure.permissions import attempts, refusal
from tests.fakes.azure.tokens import OBJECT_ID
from tests.fakes.azure.wire import call_of
from tests.fakes.faults import FaultKind
from tests.fakes.messages import Call, Request, ServiceError

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
_BLOB = {
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
        return _BLOB.get(kind)
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
